//! Passes a message from the transport to its receive, or to the unexpected queue.

use cableway_btl::SharedBytes;

use super::communicator::{Communicator, Matching, Refused};
use super::deliver::{self, Arrived};
use super::engine::Engine;
use super::matching::{Arrival, Released};
use super::registry::Age;
use super::request::Receive;
use crate::abort::Abort;
use crate::core::{self, Done, flow};
use crate::error::Error;
use crate::protocol::{self, Content, Fin, Slot, UnexpectedMessage};
use crate::status::NOTICE;
use crate::wire::{Envelope, Malformed};

/// A message that is being matched.
pub(super) trait Message {
    fn envelope(&self) -> Envelope;
    /// Returns whether its sender waits for the receiver.
    fn is_announced(&self) -> bool;
    /// Returns a copy that can wait.
    fn keep(self) -> UnexpectedMessage;
    /// Delivers it to the receive that it matched.
    fn deliver(self, engine: &Engine, slot: &Slot, matched: (Receive, u32), done: &mut Done);
}

impl Message for &Arrived<'_> {
    #[inline]
    fn envelope(&self) -> Envelope {
        self.envelope
    }

    fn is_announced(&self) -> bool {
        self.content.is_announced()
    }

    fn keep(self) -> UnexpectedMessage {
        UnexpectedMessage::new(self.envelope, self.content.clone(), self.payload())
    }

    #[inline]
    fn deliver(self, engine: &Engine, slot: &Slot, matched: (Receive, u32), done: &mut Done) {
        deliver::arrived(engine, slot, matched, self, done);
    }
}

impl Message for UnexpectedMessage {
    fn envelope(&self) -> Envelope {
        self.envelope
    }

    fn is_announced(&self) -> bool {
        self.content.is_announced()
    }

    fn keep(self) -> UnexpectedMessage {
        self
    }

    fn deliver(self, engine: &Engine, slot: &Slot, matched: (Receive, u32), done: &mut Done) {
        deliver::unexpected(engine, slot, matched, self, done);
    }
}

/// The decision about a message, made under the locks.
enum Admitted<M> {
    Matched((Receive, u32), M),
    Queued,
    Refused(M, Abort),
    NoCommunicator(M),
}

/// What became of an eager message in a simple case.
pub(super) enum Simple {
    /// Its receive was posted.
    Awaited((Receive, u32)),
    /// It waits for a service, or is refused.
    Kept(Result<(), Malformed>),
}

/// Admits an eager message in a simple case: the communicator is known, it is the message's turn, no message is parked
/// behind it, and its receive is posted or a service takes it. Otherwise it has no effect, and the message must
/// [`arrive`].
#[inline(always)]
pub(super) fn admit_simple(
    engine: &Engine,
    slot: &Slot,
    envelope: &Envelope,
    payload: SharedBytes<'_>,
) -> Option<Simple> {
    engine.registry.read(|registry| {
        let communicator = registry.get(envelope.context)?;
        let source = communicator.rank_of(slot.peer.rank)?;
        if communicator.member(source).epoch != envelope.epoch {
            return None;
        }
        let mut matching = communicator.matching.lock();
        if matching.matcher.has_inbox(envelope.tag) {
            return keep_in_inbox(engine, slot, &mut matching, (source, envelope), payload).map(Simple::Kept);
        }
        let receive = matching.matcher.take_next(source, envelope.tag, envelope.seq)?;
        Some(Simple::Awaited((receive, source)))
    })
}

/// Keeps an eager message of a communicator whose inbox has its tag. Returns `None` if it is not the turn of the message
/// or others are parked behind it. Then it has no effect.
#[inline]
fn keep_in_inbox(
    engine: &Engine,
    slot: &Slot,
    matching: &mut Matching,
    (source, envelope): (u32, &Envelope),
    payload: SharedBytes<'_>,
) -> Option<Result<(), Malformed>> {
    let matcher = &mut matching.matcher;
    if !matcher.is_next_alone(source, envelope.seq) {
        return None;
    }
    let noted = note_stored(engine, slot, flow::cost(true, payload.len()));
    if noted.is_ok() {
        matcher.store_whole(source, |bytes| payload.append_to(bytes));
        engine.attention().raise();
    }
    Some(noted)
}

/// Matches a message and delivers it, or keeps it.
#[inline(never)]
pub(super) fn arrive(engine: &Engine, slot: &Slot, message: impl Message, done: &mut Done) -> Result<(), Malformed> {
    let envelope = message.envelope();
    let (admitted, more) = engine.registry.read(|registry| match registry.get(envelope.context) {
        Some(communicator) => admit(engine, slot, communicator, envelope, message),
        None => Ok((Admitted::NoCommunicator(message), false)),
    })?;
    match admitted {
        Admitted::Matched(matched, message) => message.deliver(engine, slot, matched, done),
        Admitted::Queued => {}
        Admitted::Refused(message, reason) => refuse(engine, slot, &message.keep(), reason, done),
        Admitted::NoCommunicator(message) => keep_early(engine, slot, message.keep(), done)?,
    }
    if more {
        release_parked(engine, slot, envelope.context, done);
    }
    Ok(())
}

/// Decides about a message of a known communicator. The flag says that parked messages may follow.
#[inline]
fn admit<M: Message>(
    engine: &Engine,
    slot: &Slot,
    communicator: &Communicator,
    envelope: Envelope,
    message: M,
) -> Result<(Admitted<M>, bool), Malformed> {
    let Envelope { context, epoch, tag, seq } = envelope;
    // Another communicator may have the context by now, so compare the epoch that this process shares with the peer.
    let Some(source) = communicator.rank_of(slot.peer.rank) else {
        return Ok((Admitted::NoCommunicator(message), false));
    };
    match Age::of(epoch, communicator.member(source).epoch) {
        Age::Current => {}
        Age::Early => return Ok((Admitted::NoCommunicator(message), false)),
        Age::Late => return Ok((Admitted::Refused(message, Abort::CommunicatorRemoved), false)),
    }
    let mut matching = communicator.matching.lock();
    let refusal = matching.refusal(tag).filter(|_| message.is_announced());
    let matcher = &mut matching.matcher;
    match matcher.arrive(source, tag, seq) {
        Arrival::Matched(receive) => {
            let more = matcher.parks(source);
            Ok((Admitted::Matched((receive, source), message), more))
        }
        Arrival::Unexpected => {
            if let Some(reason) = refusal {
                return Ok((Admitted::Refused(message, reason), matcher.parks(source)));
            }
            let unexpected = message.keep();
            note_stored(engine, slot, unexpected.cost())?;
            engine.core().counters.unexpected.increment();
            matcher.store(source, tag, unexpected);
            // Counted first: those who look see the count.
            if tag == NOTICE {
                engine.note_notice();
            }
            engine.attention().raise();
            Ok((Admitted::Queued, matcher.parks(source)))
        }
        Arrival::Early => {
            let unexpected = message.keep();
            note_stored(engine, slot, unexpected.cost())?;
            engine.core().counters.out_of_order.increment();
            matcher.park(source, tag, seq, unexpected);
            Ok((Admitted::Queued, false))
        }
        Arrival::Repeated => Err(Malformed::Repeated { context, seq }),
    }
}

/// Delivers the messages that had overtaken the one just admitted.
#[cold]
fn release_parked(engine: &Engine, slot: &Slot, context: u32, done: &mut Done) {
    let Some(communicator) = engine.registry.read(|registry| registry.get(context).cloned()) else { return };
    let Some(source) = communicator.rank_of(slot.peer.rank) else { return };
    loop {
        let released = communicator.matching.lock().matcher.release(source);
        match released {
            None => break,
            Some(Released::Unexpected) => {
                engine.core().counters.unexpected.increment();
                // It may have been one. Counted first, as above.
                engine.note_notice();
                engine.attention().raise();
            }
            Some(Released::Matched(receive, unexpected)) => {
                note_taken(slot, &unexpected);
                deliver::unexpected(engine, slot, (receive, source), unexpected, done);
            }
        }
    }
    let refused = communicator.matching.lock().take_refused();
    refuse_all(engine, &communicator, refused, done);
}

/// Refuses messages that have waited in a communicator, if there are any.
pub(super) fn refuse_all(engine: &Engine, on: &Communicator, refused: Option<Refused>, done: &mut Done) {
    let Some((messages, reason)) = refused else { return };
    for (source, kept) in messages {
        if let Some(slot) = engine.known(on.group()[source as usize]) {
            note_taken(slot, &kept);
            refuse(engine, slot, &kept, reason, done);
        }
    }
}

/// Keeps a message until its communicator is added, or refuses it if that was removed.
#[cold]
fn keep_early(engine: &Engine, slot: &Slot, unexpected: UnexpectedMessage, done: &mut Done) -> Result<(), Malformed> {
    let (context, rank) = (unexpected.envelope.context, slot.peer.rank);
    enum Early {
        Queued(usize),
        Late(UnexpectedMessage),
        Arrived(UnexpectedMessage),
    }
    note_stored(engine, slot, unexpected.cost())?;
    let early = engine.registry.write(|registry| {
        let known = registry.get(context).and_then(|known| known.rank_of(rank).map(|rank| known.member(rank)));
        let epoch = known.map_or_else(|| registry.epoch(context, rank), |member| member.epoch);
        match (Age::of(unexpected.envelope.epoch, epoch), known) {
            (Age::Late, _) => Early::Late(unexpected),
            // Another thread has added it meanwhile.
            (Age::Current, Some(_)) => Early::Arrived(unexpected),
            _ => Early::Queued(registry.keep_early(rank, unexpected)),
        }
    });
    match early {
        Early::Queued(count) if count > engine.core().parameters.pml_early_messages => {
            Err(Malformed::TooManyEarly(count))
        }
        Early::Queued(_) => Ok(()),
        Early::Late(unexpected) => {
            note_taken(slot, &unexpected);
            refuse(engine, slot, &unexpected, Abort::CommunicatorRemoved, done);
            Ok(())
        }
        Early::Arrived(unexpected) => {
            note_taken(slot, &unexpected);
            arrive(engine, slot, unexpected, done)
        }
    }
}

/// Delivers the messages that waited for a communicator that was just added.
pub(super) fn deliver_early(engine: &Engine, context: u32, done: &mut Done) {
    let early = engine.registry.write(|registry| registry.take_early(context));
    for (rank, unexpected) in early {
        let Some(slot) = engine.known(rank) else { continue };
        note_taken(slot, &unexpected);
        if let Err(malformed) = arrive(engine, slot, unexpected, done) {
            core::disconnect(engine, slot, &malformed, done);
        }
    }
}

/// Gives a receive the message that waited for it.
pub(super) fn deliver_waiting(
    engine: &Engine,
    on: &Communicator,
    (receive, source): (Receive, u32),
    unexpected: UnexpectedMessage,
    done: &mut Done,
) {
    match engine.peer(on.group()[source as usize]) {
        Ok(slot) => {
            note_taken(slot, &unexpected);
            deliver::unexpected(engine, slot, (receive, source), unexpected, done);
        }
        // The peer sent the message, so it is connected.
        Err(error) => receive.fail(error, done),
    }
}

/// Drops a message that will not be received, and aborts it at a sender that waits.
pub(super) fn refuse(engine: &Engine, slot: &Slot, unexpected: &UnexpectedMessage, reason: Abort, done: &mut Done) {
    if let Some((sender, _)) = unexpected.content.follows() {
        return engine.protocols.with(slot, done, |cx, channel| protocol::refuse_data(cx, channel, sender));
    }
    protocol::consume(engine.core(), slot, unexpected.cost(), done);
    if let Content::Announced(rendezvous) = &unexpected.content {
        let fin = Fin { sender: rendezvous.announced.sender, result: Err(reason) };
        engine.protocols.with(slot, done, |_, channel| channel.links.send_control(&fin));
    }
}

/// Counts a message of this cost as one that waits here.
pub(super) fn note_stored(engine: &Engine, slot: &Slot, cost: u64) -> Result<(), Malformed> {
    let stored = slot.peer.stored.add(cost);
    let allowed = engine.core().parameters.pml_unexpected_limit as u64;
    if stored > allowed { Err(Malformed::OverCredit { stored, allowed }) } else { Ok(()) }
}

/// Counts an unexpected message as consumed.
pub(super) fn note_taken(slot: &Slot, unexpected: &UnexpectedMessage) {
    slot.peer.stored.sub(unexpected.cost());
}

/// Returns why an unmatched receive of `source` would wait for ever.
#[inline]
pub(super) fn cannot_wait(
    engine: &Engine,
    on: &Communicator,
    matching: &super::communicator::Matching,
    source: i32,
) -> Option<Error> {
    if matching.removed {
        return Some(Error::CommunicatorRemoved { context: on.context() });
    }
    let rank = matching.gone_source(source)?;
    engine.known(*on.group().get(rank as usize)?)?.peer.check().err()
}
