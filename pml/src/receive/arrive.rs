//! A message's way from the transport to its receive, or to where it waits.

use cableway_btl::{Received, SharedBytes};

use crate::communicator::Communicator;
use crate::completion::{Active, Done};
use crate::engine::Engine;
use crate::error::Abort;
use crate::kept::{Content, Kept};
use crate::links::Peer;
use crate::matching::{Arrival, Released};
use crate::registry::Age;
use crate::wire::{Envelope, Header, Malformed};

/// A message within its upcall.
pub(crate) struct Arrived<'m> {
    pub(crate) envelope: Envelope,
    pub(crate) content: Content,
    pub(crate) message: &'m Received<'m>,
    pub(crate) header_len: usize,
}

impl Arrived<'_> {
    #[inline]
    pub(crate) fn payload(&self) -> SharedBytes<'_> {
        self.message.bytes().skip(self.header_len)
    }
}

/// A message that is looking for its receive.
pub(crate) trait Message {
    fn envelope(&self) -> Envelope;
    /// A copy that can wait.
    fn keep(self) -> Kept;
    /// Gives it to the receive that it matched.
    fn deliver(self, engine: &Engine, request: Active, peer: &Peer, source: u32, done: &mut Done);
}

impl Message for &Arrived<'_> {
    #[inline]
    fn envelope(&self) -> Envelope {
        self.envelope
    }

    fn keep(self) -> Kept {
        Kept::new(self.envelope, self.content.clone(), self.payload())
    }

    #[inline]
    fn deliver(self, engine: &Engine, request: Active, peer: &Peer, source: u32, done: &mut Done) {
        engine.deliver_arrived(request, peer, source, self, done);
    }
}

impl Message for Kept {
    fn envelope(&self) -> Envelope {
        self.envelope
    }

    fn keep(self) -> Kept {
        self
    }

    fn deliver(self, engine: &Engine, request: Active, peer: &Peer, source: u32, done: &mut Done) {
        engine.deliver_kept(request, peer, source, self, done);
    }
}

/// What was decided about a message under the locks.
enum Fate<M> {
    Deliver(Active, u32, M),
    Kept,
    Late(M),
    NoCommunicator(M),
}

impl Engine {
    /// The receive that an eager message goes to, if nothing stands between them: the communicator is known, it is the
    /// message's turn, none was parked behind it, and the receive is posted. Else nothing has happened, and the message
    /// must [`arrive`](Self::arrive).
    #[inline(always)]
    pub(crate) fn take_awaiting(&self, peer: &Peer, envelope: &Envelope) -> Option<(Active, u32)> {
        self.registry.read(|registry| {
            let communicator = registry.get(envelope.context)?;
            let source = communicator.rank_of(peer.rank)?;
            if communicator.member(source).epoch != envelope.epoch {
                return None;
            }
            let request = communicator.matching.lock().matcher.take_next(source, envelope.tag, envelope.seq)?;
            Some((request, source))
        })
    }

    /// Matches a message and delivers it, or keeps it.
    #[inline(never)]
    pub(crate) fn arrive(&self, peer: &Peer, message: impl Message, done: &mut Done) -> Result<(), Malformed> {
        let envelope = message.envelope();
        let (fate, more) = self.registry.read(|registry| match registry.get(envelope.context) {
            Some(communicator) => self.admit(peer, communicator, envelope, message),
            None => Ok((Fate::NoCommunicator(message), false)),
        })?;
        match fate {
            Fate::Deliver(request, source, message) => message.deliver(self, request, peer, source, done),
            Fate::Kept => {}
            Fate::Late(message) => self.refuse(peer, &message.keep(), Abort::CommunicatorRemoved, done),
            Fate::NoCommunicator(message) => self.keep_early(peer, message.keep(), done)?,
        }
        if more {
            self.release_parked(peer, envelope.context, done);
        }
        Ok(())
    }

    /// Decides about a message of a known communicator; the flag says that parked ones may follow.
    #[inline]
    fn admit<M: Message>(
        &self,
        peer: &Peer,
        communicator: &Communicator,
        envelope: Envelope,
        message: M,
    ) -> Result<(Fate<M>, bool), Malformed> {
        let Envelope { context, epoch, tag, seq } = envelope;
        // The context may be another communicator's by now: the epoch that this process has with the peer decides.
        let Some(source) = communicator.rank_of(peer.rank) else {
            return Ok((Fate::NoCommunicator(message), false));
        };
        match Age::of(epoch, communicator.member(source).epoch) {
            Age::Current => {}
            Age::Early => return Ok((Fate::NoCommunicator(message), false)),
            Age::Late => return Ok((Fate::Late(message), false)),
        }
        let mut matching = communicator.matching.lock();
        let matcher = &mut matching.matcher;
        match matcher.arrive(source, tag, seq) {
            Arrival::Matched(request) => {
                let more = matcher.parks(source);
                Ok((Fate::Deliver(request, source, message), more))
            }
            Arrival::Unexpected => {
                let kept = message.keep();
                self.note_stored(peer, &kept)?;
                self.counters.unexpected.increment();
                matcher.store(source, tag, kept);
                Ok((Fate::Kept, matcher.parks(source)))
            }
            Arrival::Early => {
                let kept = message.keep();
                self.note_stored(peer, &kept)?;
                self.counters.out_of_order.increment();
                matcher.park(source, tag, seq, kept);
                Ok((Fate::Kept, false))
            }
            Arrival::Repeated => Err(Malformed::Repeated { context, seq }),
        }
    }

    /// Delivers what had overtaken the message just admitted.
    #[cold]
    fn release_parked(&self, peer: &Peer, context: u32, done: &mut Done) {
        let Some(communicator) = self.registry.read(|registry| registry.get(context).cloned()) else { return };
        let Some(source) = communicator.rank_of(peer.rank) else { return };
        loop {
            let released = communicator.matching.lock().matcher.release(source);
            match released {
                None => return,
                Some(Released::Stored) => self.counters.unexpected.increment(),
                Some(Released::Matched(request, _, kept)) => {
                    self.note_taken(peer, &kept);
                    kept.deliver(self, request, peer, source, done);
                }
            }
        }
    }

    /// Keeps a message until its communicator is added, or refuses it if that was removed.
    #[cold]
    fn keep_early(&self, peer: &Peer, kept: Kept, done: &mut Done) -> Result<(), Malformed> {
        let context = kept.envelope.context;
        enum Early {
            Kept(usize),
            Late(Kept),
            Arrived(Kept),
        }
        self.note_stored(peer, &kept)?;
        let early = self.registry.write(|registry| {
            let known = registry.get(context).and_then(|known| known.rank_of(peer.rank).map(|rank| known.member(rank)));
            let epoch = known.map_or_else(|| registry.epoch(context, peer.rank), |member| member.epoch);
            match (Age::of(kept.envelope.epoch, epoch), known) {
                (Age::Late, _) => Early::Late(kept),
                // It was added since we looked.
                (Age::Current, Some(_)) => Early::Arrived(kept),
                _ => Early::Kept(registry.keep_early(peer.rank, kept)),
            }
        });
        match early {
            Early::Kept(count) if count > self.parameters.pml_early_messages => Err(Malformed::TooManyEarly(count)),
            Early::Kept(_) => Ok(()),
            Early::Late(kept) => {
                self.note_taken(peer, &kept);
                self.refuse(peer, &kept, Abort::CommunicatorRemoved, done);
                Ok(())
            }
            Early::Arrived(kept) => {
                self.note_taken(peer, &kept);
                self.arrive(peer, kept, done)
            }
        }
    }

    /// Delivers the messages that waited for a communicator that was just added.
    pub(crate) fn deliver_early(&self, context: u32, done: &mut Done) {
        let early = self.registry.write(|registry| registry.take_early(context));
        for (rank, kept) in early {
            let Some(peer) = self.known_peer(rank) else { continue };
            self.note_taken(peer, &kept);
            if let Err(malformed) = self.arrive(peer, kept, done) {
                self.disconnect(peer, &malformed, done);
            }
        }
    }

    /// Drops a message that nobody will receive; its sender is told if it waits.
    pub(crate) fn refuse(&self, peer: &Peer, kept: &Kept, reason: Abort, done: &mut Done) {
        self.consume(peer, kept.cost(), done);
        if let Content::Announced(offer) = &kept.content {
            let sender = offer.announced.sender;
            self.with_links(peer, done, |links, _| links.control(&Header::Finish { sender, result: Err(reason) }));
        }
    }

    /// Counts a message among those that wait here.
    fn note_stored(&self, peer: &Peer, kept: &Kept) -> Result<(), Malformed> {
        let stored = peer.stored.add(kept.cost());
        let allowed = self.parameters.pml_unexpected_limit as u64;
        if stored > allowed { Err(Malformed::OverCredit { stored, allowed }) } else { Ok(()) }
    }

    /// It waits no more.
    pub(crate) fn note_taken(&self, peer: &Peer, kept: &Kept) {
        peer.stored.sub(kept.cost());
    }
}
