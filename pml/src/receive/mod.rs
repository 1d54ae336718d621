//! Receiving.
//!
//! A message that arrives is matched under its communicator's lock ([`arrive`]) and then delivered without it
//! ([`deliver`]): an eager one is copied, an announced one becomes a [`ReceiveTransfer`] in its peer's table.

mod arrive;
mod deliver;
mod fragments;
mod get;
mod offers;
mod pieces;
mod rendezvous;
mod transfer;

pub(crate) use arrive::Arrived;
use arrive::Message as _;
pub(crate) use offers::Offers;
pub(crate) use transfer::ReceiveTransfer;

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use cableway_btl::Region;
use cableway_common_cuda::Order;

use crate::buffer::Buffer;
use crate::communicator::Communicator;
use crate::completion::{Active, Done};
use crate::engine::Engine;
use crate::error::Error;
use crate::kept::Kept;
use crate::request::{PROC_NULL, Request, Status};
use crate::wait::AbortUnlessComplete;

impl Engine {
    /// Starts a receive from rank `source` or [`ANY`](crate::ANY) with `tag` or [`ANY`](crate::ANY).
    ///
    /// Once a process of the communicator has failed, a receive that could only be satisfied by it, and one from any
    /// source, fails unless its message is here already. Of one that has left, only receives that name it fail; one from
    /// any source fails in a call that waits, once every other process is gone and unless this one has ever sent to
    /// itself.
    ///
    /// # Safety
    /// The request is not active; it and the buffer stay valid, and the buffer untouched, until the request completes.
    ///
    /// # Errors
    /// As `isend`.
    #[inline(always)]
    pub unsafe fn irecv(
        &self,
        on: &Communicator,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
        request: *const Request,
    ) -> Result<(), Error> {
        self.check_open()?;
        let Some(request) = NonNull::new(request.cast_mut()) else {
            return Err(Error::BadRequest { reason: "it is null" });
        };
        if source == PROC_NULL {
            // SAFETY: the caller's promise.
            Self::complete_null(unsafe { Active::new(request) });
            return Ok(());
        }
        let pattern = on.pattern(source, tag)?;
        buffer.packed_len()?;
        // SAFETY: the caller's promise.
        let mut active = unsafe { Active::new(request) };
        // SAFETY: the caller's promise lasts until the operation is complete.
        unsafe { active.inner().room.renew(buffer, &self.devices) };
        let on_device = active.inner().room.on_device().copied();
        let expected = on_device.and_then(|_| self.expect_to_invite(on, source, request));
        let mut matching = on.matching.lock();
        if let Some((source, _, kept)) = matching.matcher.take(pattern) {
            drop(matching);
            let mut done = Done::default();
            self.deliver_waiting(on, active, source, kept, &mut done);
            self.set_out_copies();
            done.run();
            return Ok(());
        }
        if let Some(error) = self.cannot_wait(on, &matching, source) {
            drop(matching);
            active.retract();
            return Err(error);
        }
        // The request's atomics may be looked at by whoever cancels it, from now on and under this lock only.
        // SAFETY: the caller keeps the request valid.
        let request = unsafe { request.as_ref() };
        request.context().store(on.context(), Ordering::Relaxed);
        let key = matching.matcher.post(pattern, active);
        request.note_posted(key);
        let Some(location) = on_device else { return Ok(()) };
        let next = expected.and_then(|_| matching.matcher.next_goes_to(pattern));
        drop(matching);
        let region = buffer.contiguous().and_then(|(address, len)| {
            Some(Region { address, len: usize::try_from(len).ok()?, location, order: Order::None })
        });
        let told = (next, region);
        // SAFETY: the caller keeps the buffer to the receive until that completes.
        let invited = expected.is_some_and(|expected| unsafe { self.invite(on, (pattern, key, expected), told) });
        if !invited {
            self.note_posted(&location);
        }
        Ok(())
    }

    /// Gives a request the message that waited for it.
    pub(crate) fn deliver_waiting(&self, on: &Communicator, request: Active, source: u32, kept: Kept, done: &mut Done) {
        let process = on.group()[source as usize];
        match self.peer(process) {
            Ok(peer) => {
                self.note_taken(peer, &kept);
                kept.deliver(self, request, peer, source, done);
            }
            // It sent the message, so it was met.
            Err(error) => request.fail(error, done),
        }
    }

    /// Why a receive of `source` that nothing has matched yet would wait for ever.
    #[inline]
    pub(crate) fn cannot_wait(
        &self,
        on: &Communicator,
        matching: &crate::communicator::Matching,
        source: i32,
    ) -> Option<Error> {
        if matching.removed {
            return Some(Error::CommunicatorRemoved { context: on.context() });
        }
        let rank = matching.gone_source(source)?;
        self.known_peer(*on.group().get(rank as usize)?)?.check().err()
    }

    /// Receives and waits.
    ///
    /// # Safety
    /// The buffer is valid for writes.
    ///
    /// # Errors
    /// Those of the operation.
    #[inline]
    pub unsafe fn recv(&self, on: &Communicator, source: i32, tag: i32, buffer: Buffer<'_>) -> Result<Status, Error> {
        let request = AbortUnlessComplete::new();
        // SAFETY: the request is new, and this frame, which lends the buffer, is not left before it is complete.
        unsafe { self.irecv(on, source, tag, buffer, request.started())? };
        self.wait_until(|| request.is_complete());
        request.into_result()
    }

    /// Cancels a receive if nothing has matched it yet: it completes, its status says so. Otherwise, and for sends,
    /// nothing happens; the request completes as it would have. Returns whether it was cancelled. A receive that ended
    /// because nobody was left who could send is cancelled as if it waited still.
    ///
    /// # Safety
    /// The request was started on this engine and is valid.
    pub unsafe fn cancel(&self, request: *const Request) -> bool {
        // SAFETY: the caller's promise.
        let Some(request) = (unsafe { request.as_ref() }) else { return false };
        if !request.is_active() {
            return request.forgive_absence();
        }
        if self.is_forked() {
            self.end_in_child(&[request]);
            return false;
        }
        let context = request.context().load(Ordering::Relaxed);
        let Some(on) = self.registry.read(|registry| registry.get(context).cloned()) else { return false };
        if !self.may_cancel(request) {
            return false;
        }
        let cancelled = {
            let mut matching = on.matching.lock();
            // A key that is stale, because the request is a send or was matched, names nothing: numbers are not reused.
            let key = request.posted();
            matching.matcher.cancel(key, |active| std::ptr::eq(active.request(), request))
        };
        let Some(active) = cancelled else { return false };
        let mut done = Done::default();
        active.complete(Status { cancelled: true, ..Status::EMPTY }, None, &mut done);
        done.run();
        true
    }
}
