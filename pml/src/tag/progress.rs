//! Handles the events that the core reports.

use std::time::{Duration, Instant};

use cableway_btl::{Error as BtlError, MAX_HEADER, Received};

use super::arrive::{Simple, admit_simple, arrive};
use super::deliver::{self, Arrived};
use super::engine::Engine;
use super::reach::end_receives;
use crate::core::{self, Core, Done, Host, PeerState, Peers};
use crate::protocol::{Channel, Content, Get, RENDEZVOUS_LEN, Rts, Slot, State, announced_data};
use crate::wire::{Envelope, Header, MATCH_LEN, Malformed, Reader, is_batch, kind, match_envelope};

impl Host for Engine {
    type PeerState = State;

    #[inline(always)]
    fn core(&self) -> &Core {
        &self.protocols.core
    }

    #[inline(always)]
    fn peers(&self) -> &Peers<State> {
        &self.protocols.peers
    }

    #[inline(always)]
    fn received(&self, slot: &Slot, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed> {
        if let Some(words) = message.bytes().first_words()
            && let Some(envelope) = match_envelope(words)
        {
            match admit_simple(self, slot, &envelope, message.bytes().skip(MATCH_LEN)) {
                Some(Simple::Awaited(matched)) => {
                    deliver::eager(self, slot, matched, envelope.tag, message, done);
                    return Ok(());
                }
                Some(Simple::Kept(kept)) => return kept,
                None => {}
            }
            let arrived = Arrived { envelope, content: Content::Eager, message, header_len: MATCH_LEN };
            return arrive(self, slot, &arrived, done);
        }
        received_other(self, slot, message, done)
    }

    fn completed(
        &self,
        slot: &Slot,
        channel: &mut Channel,
        operation: <State as PeerState>::Operation,
        result: Result<(), BtlError>,
        done: &mut Done,
    ) {
        self.protocols.completed(slot, channel, operation, result, done);
    }

    fn advance(&self, slot: &Slot, channel: &mut Channel, done: &mut Done) -> usize {
        self.protocols.advance(slot, channel, done)
    }

    fn abandon(&self, slot: &Slot, channel: &mut Channel, done: &mut Done) {
        self.protocols.abandon(slot, channel, done);
    }

    fn ended(&self, slot: &Slot, done: &mut Done) {
        end_receives(self, slot, done);
    }

    #[inline]
    fn has_copies(&self) -> bool {
        !self.protocols.shared.copies.is_empty()
    }

    fn poll_copies(&self) -> usize {
        self.protocols.poll_copies()
    }
}

#[cold]
fn received_other(engine: &Engine, slot: &Slot, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed> {
    engine.protocols.note_heard(slot);
    let mut bytes = [0; MAX_HEADER];
    let count = message.bytes().copy_to(&mut bytes);
    if is_batch(bytes[0]) {
        return engine.protocols.handle_several(slot, message, done);
    }
    let reader = Reader::new(&bytes[..count], message.bytes().len())?;
    let (envelope, content, header_len) = match reader.kind {
        kind::MATCH => (Envelope::parse(&reader)?, Content::Eager, MATCH_LEN),
        kind::RENDEZVOUS => {
            let Rts { envelope, announced } = Rts::parse(&reader)?;
            let content = Content::announced(announced, None);
            if let Some(follows) = content.follows() {
                engine.protocols.with(slot, done, |cx, channel| announced_data(cx, channel, follows))?;
            }
            (envelope, content, RENDEZVOUS_LEN)
        }
        kind::GET => {
            let Get { envelope, announced, from } = Get::parse(&reader)?;
            (envelope, Content::announced(announced, Some(from)), reader.message_len)
        }
        _ => return engine.protocols.handle(slot, message, &reader, done),
    };
    arrive(engine, slot, &Arrived { envelope, content, message, header_len }, done)
}

impl Engine {
    /// Makes progress without blocking. Returns how many events there were.
    #[inline]
    pub fn progress(&self) -> usize {
        let events = core::turn(self);
        let alone = self.tasks.is_empty() && !self.services.want_a_poll() && self.temporary.is_empty();
        if alone { events } else { events + self.poll_others() }
    }

    /// Polls what progresses with messages. Returns how many events there were.
    #[cold]
    fn poll_others(&self) -> usize {
        if self.is_forked() {
            return 0;
        }
        let ended = if self.tasks.is_empty() { 0 } else { self.tasks.poll() };
        let handled = if self.services.want_a_poll() { self.services.poll(self) } else { 0 };
        ended + handled + self.temporary.poll(|service| service.poll(self))
    }

    /// Flushes earlier sends, then tells peers that this process ends in good order. Waits at most `limit`, and returns
    /// whether all left. Afterwards every operation returns [`Error::Finalized`](crate::Error::Finalized).
    pub fn finalize(&self, limit: Duration) -> bool {
        let core = self.core();
        if core.is_forked() {
            return true;
        }
        core.set_finalized();
        // No thread may call the driver while the process ends.
        core.devices.stop_measuring();
        self.protocols.keep_costs();
        let mut flushed = vec![false; core.btls.len()];
        self.progress_until(limit, || {
            if !self.is_quiet() {
                return false;
            }
            // A standby link may have to replace a link that still has messages to deliver.
            let waits = core.btls.iter().zip(&flushed).any(|(slot, flushed)| slot.is_in_use() && !flushed);
            for (slot, flushed) in core.btls.iter().zip(&mut flushed) {
                if slot.is_in_use() || !waits {
                    *flushed = *flushed || slot.btl.finalize();
                }
            }
            flushed.iter().all(|&flushed| flushed)
        })
    }

    /// Flushes earlier sends without ending the engine. Waits at most `limit`, and returns whether all left.
    ///
    /// A request may be complete while the peer still waits for a header that a busy link refused: that the data is
    /// stored, or that it was fetched. Such headers leave only while this engine makes progress. So a host that will
    /// make no call for long drains first.
    pub fn drain(&self, limit: Duration) -> bool {
        self.is_forked() || self.progress_until(limit, || self.is_quiet())
    }

    fn progress_until(&self, limit: Duration, mut over: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + limit;
        loop {
            self.progress();
            if over() {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// Returns whether nothing waits to be sent.
    fn is_quiet(&self) -> bool {
        !self.has_copies()
            && self.protocols.peers.met().all(|slot| {
                let channel = slot.channel.lock();
                let idle = channel.links.are_idle() && channel.state.queues.are_empty();
                slot.peer.gone().is_some() || (idle && channel.links.operations.is_empty())
            })
    }
}
