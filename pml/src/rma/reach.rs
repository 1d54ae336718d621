//! The caller's side of exposures: asks owners for direct access to their memory, and releases it.

use std::sync::Arc;

use cableway_base::Rank;
use zerocopy::IntoBytes;

use super::caller::Caller;
use super::exposure_wire::{EXPOSE, EXPOSED_LEN, RELEASED, parse_exposed};
use super::exposures::{Exposures, Ticket};
use super::gates::Reach;
use super::key::Name;
use crate::am::Arrival;
use crate::buffer::Buffer;
use crate::wire::Malformed;

impl Caller {
    /// Asks an owner to expose memory. The answer comes in a later call that makes progress.
    pub(super) fn ask_to_expose(&self, owner: Rank, name: &Name) {
        // SAFETY: there is no data.
        let posted = unsafe { self.poster.post_inline(owner, EXPOSE, name.as_bytes(), Buffer::EMPTY) };
        if let Err(error) = posted {
            // The owner is gone, which ends everything with it.
            log::debug!("rank {owner} is not asked to expose memory: {error}");
        }
    }

    /// Handles an owner's answer.
    pub(super) fn exposed(self: &Arc<Self>, arrival: Arrival<'_>) -> Result<(), Malformed> {
        let (header, owner) = (arrival.header(), arrival.source());
        let handles = arrival.data().unwrap_or_default();
        if header.len() != EXPOSED_LEN || arrival.len() != handles.len() as u64 {
            return Err(Malformed::OneSided("an exposure of another length"));
        }
        let (ticket, granted) = parse_exposed(header, handles)?;
        let release = self.take_grant(owner, ticket, granted);
        let release = release.ok_or(Malformed::OneSided("an exposure that was not asked for"))?;
        self.release_if(release, owner, ticket);
        Ok(())
    }

    /// Handles a revocation.
    pub(super) fn revoked(self: &Arc<Self>, arrival: Arrival<'_>) -> Result<(), Malformed> {
        let (ticket, owner) = (Ticket::parse(arrival.header())?, arrival.source());
        let revoked = self.exposures_of(owner, |exposures| (exposures.reached(ticket), exposures.revoke(ticket)));
        let Some((reach, release)) = revoked else { return Ok(()) };
        self.release_if(release, owner, ticket);
        if let (false, Some(reach)) = (release, reach) {
            self.release_after_streams(owner, reach);
        }
        Ok(())
    }

    /// Releases revoked memory once the streams that access it have passed.
    fn release_after_streams(self: &Arc<Self>, owner: Rank, reach: Arc<Reach>) {
        let (me, first) = (Arc::downgrade(self), reach.streams.lock().accesses.under_way().cloned());
        let look = move || {
            let Some(caller) = me.upgrade() else { return true };
            if reach.streams.lock().accesses.under_way().is_some() {
                return false;
            }
            let over = caller.exposures_of(owner, Exposures::over).unwrap_or_default();
            over.into_iter().for_each(|ticket| caller.release_if(true, owner, ticket));
            true
        };
        // It may have passed just now.
        if !look()
            && let Some(stream) = first
        {
            stream.look_until(Box::new(look));
        }
    }

    /// Ends a direct access.
    pub(super) fn end_use(&self, owner: Rank, ticket: Ticket) {
        let release = self.exposures_of(owner, |exposures| exposures.end(ticket));
        self.release_if(release == Some(true), owner, ticket);
    }

    /// Begins no more direct accesses, and releases all memory of others. Returns whether that is over: no access is
    /// under way, and no owner owes an answer. May be called again.
    pub(super) fn stop_reaching(&self) -> bool {
        let mut over = true;
        for (owner, lane) in self.chosen(None) {
            let idle = lane.exposures.lock().close();
            idle.into_iter().for_each(|ticket| self.release_if(true, owner, ticket));
            over &= !lane.exposures.lock().is_open();
        }
        over
    }

    /// Runs `act` with the exposures of an owner to which there were operations.
    pub(super) fn exposures_of<R>(&self, owner: Rank, act: impl FnOnce(&mut Exposures<Reach>) -> R) -> Option<R> {
        Some(act(&mut self.known(owner)?.exposures.lock()))
    }

    pub(super) fn release_if(&self, release: bool, owner: Rank, ticket: Ticket) {
        if !release {
            return;
        }
        // SAFETY: there is no data.
        let posted = unsafe { self.poster.post_inline(owner, RELEASED, &ticket.to_bytes(), Buffer::EMPTY) };
        if let Err(error) = posted {
            log::debug!("rank {owner} is not told that its memory is released: {error}");
        }
        self.exposures_of(owner, |exposures| exposures.released(ticket));
    }
}
