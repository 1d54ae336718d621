//! Puts, gets and atomic operations on memory that this process has mapped: loads and stores.
//!
//! Such an operation is complete when the call returns. It takes no lock, allocates nothing and sends nothing.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_base::gate::{Gate, Inside};
use cableway_btl::Mapping;

use super::caller::{Caller, Lane};
use super::exposure_wire::Ways;
use super::exposures::{Begin, Granted, Ticket};
use super::gates::{Mapped, Reach};
use super::key::Name;
use super::registry::Span;
use super::wire::SignalAsk;
use super::words;
use crate::core::Done;
use crate::protocol::Slot;
use crate::wire::Exposed;

/// Operations of a thread between two turns of progress. They wait for nothing, and a program that makes no other calls
/// must hear nevertheless that an owner revokes its memory, or that it died.
const TURN: usize = 32;

impl Caller {
    /// Calls `act` with the address of a peer's memory that is mapped here, unless operations to the peer must wait.
    /// Returns `None`, without a call, otherwise.
    #[inline]
    pub(super) fn with_mapped<R>(&self, to: Rank, span: &Span, act: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let lane = self.known(to)?;
        let gate = lane.gates.of(span.name.slot.get()).get()?;
        if !lane.is_free() {
            return None;
        }
        let Some(inside) = gate.enter() else {
            self.note_left(to, lane, gate);
            return None;
        };
        let result = inside.at(span).map(act);
        self.leave(to, lane, gate, inside);
        result
    }

    /// Gives the signal of an operation whose bytes have moved, if its word is mapped here. Returns whether it did.
    pub(super) fn give_mapped_signal(&self, to: Rank, signal: &SignalAsk) -> bool {
        let given = self.with_mapped(to, &signal.word, |place| {
            // SAFETY: the word is mapped and aligned.
            words::mapped(place, 8).map(|word| unsafe { words::change_host(word, signal.change()) })
        });
        given.flatten().is_some()
    }

    #[inline]
    fn leave(&self, to: Rank, lane: &Lane, gate: &Gate<Mapped>, inside: Inside<'_, Mapped>) {
        if inside.leave() {
            self.note_left(to, lane, gate);
        }
    }

    /// Releases what was revoked, if this user of a closed gate was the last one.
    #[cold]
    fn note_left(&self, to: Rank, lane: &Lane, gate: &Gate<Mapped>) {
        let over = lane.exposures.lock().over();
        over.into_iter().for_each(|ticket| self.release_if(true, to, ticket));
        // The exposure of a peer that is gone is forgotten already.
        gate.is_over();
    }

    /// Counts an operation that was complete at once, and makes progress from time to time.
    #[inline]
    pub(super) fn note_direct(&self) {
        let engine = self.poster.engine();
        if engine.core().direct_stores.add(1).is_multiple_of(TURN) {
            engine.progress();
        }
    }

    /// Asks for the exposure of memory that could be mapped, unless that was asked already.
    pub(super) fn want(&self, owner: Rank, name: &Name) {
        if owner == self.poster.rank() {
            return;
        }
        let asked = self.exposures_of(owner, |exposures| exposures.ask(name));
        if matches!(asked, Some(Begin::Ask)) {
            self.ask_to_expose(owner, name);
        }
    }

    /// Maps memory that an owner has exposed, if a link can, and passes the owner's answer on. Returns what
    /// [`Exposures::granted`](super::exposures::Exposures::granted) does.
    pub(super) fn take_grant(&self, owner: Rank, ticket: Ticket, granted: Granted<Ways>) -> Option<bool> {
        let lane = self.known(owner)?;
        let granted = match granted {
            Granted::Exposed { exposed, len } => {
                let name = lane.exposures.lock().name(ticket)?;
                let memory = self.map(owner, &exposed).filter(|memory| memory.len() as u64 == len);
                let gate = memory.and_then(|memory| {
                    let gate = lane.gates.of(ticket.slot).get_or_init(Arc::default);
                    gate.open(Mapped { name, memory }).is_ok().then(|| gate.clone())
                });
                // Its drop closes the gate if the owner is gone meanwhile.
                Granted::Exposed { exposed: Reach::new(exposed, gate), len }
            }
            Granted::Never => Granted::Never,
            Granted::Refused => Granted::Refused,
        };
        lane.exposures.lock().granted(ticket, granted)
    }

    /// Maps memory that can be both read and written.
    fn map(&self, owner: Rank, ways: &Ways) -> Option<Mapping> {
        let engine = self.poster.engine();
        let (Some(_), Some(way), Some(slot)) = (&ways.read, &ways.write, engine.known(owner)) else { return None };
        let mut done = Done::default();
        let mapped = map_by_link(engine, slot, way, &mut done);
        done.run();
        mapped
    }
}

fn map_by_link(engine: &crate::tag::Engine, slot: &Slot, way: &Exposed, done: &mut Done) -> Option<Mapping> {
    engine.protocols.with(slot, done, |_, channel| {
        let names = (way.btl, way.ordinal);
        let link = channel.links.active.iter_mut().find(|link| (link.tag, link.ordinal) == names)?;
        link.endpoint.map(&way.handle)
    })
}
