//! Agrees with peers on prepared operations, and watches the peers.
//!
//! The receiver offers its words and its buffer when it prepares. The sender takes the offer and answers in whichever call
//! waits for an agreement. Offers of one peer on one communicator are taken in their order by operations with equal tags.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cableway_btl::process::Process;
use cableway_common_cuda::{ExportKind, Exports, Imports, MemoryClass, Reach};
use parking_lot::Mutex;

use super::board::{Boards, Line};
use super::note::Note;
use super::pair::{Agreed, Copy, Direct, Pair};
use super::plan::Side;
use super::quiet::{PATIENCE, while_quiet};
use super::wire::{
    ANSWER_LEN, Answer, FAREWELL_LEN, NUMBERS, OFFER, OFFER_LEN, Obstacle, Offer, Place, answer_tag, farewell_tag,
};
use crate::core::{self, Done};
use crate::error::Error;
use crate::stream::state::StreamState;
use crate::tag::{Communicator, Engine};
use crate::wire::Malformed;

/// Allocations that are exported for prepared operations.
const EXPORTS: usize = 1024;
/// How often the thread looks for peers that are gone, while a stream may wait for one in a prepared operation.
const WATCH: Duration = Duration::from_millis(10);
/// How often it releases streams whose peer is gone.
const RELEASE: Duration = Duration::from_micros(50);

/// The prepared operations of an engine.
pub(in crate::stream) struct Exchange {
    exports: Exports,
    pub(in crate::stream) imports: Imports,
    boards: Boards,
    process: Process,
    /// Those that are not agreed on.
    waiting: Mutex<Vec<Arc<Pair>>>,
    inboxes: Mutex<Vec<Inbox>>,
    /// Those that are agreed on.
    live: Mutex<Vec<Arc<Pair>>>,
    leaving: Mutex<Vec<Leaving>>,
    numbers: Mutex<HashSet<u32>>,
}

/// Offers from one peer on one communicator.
struct Inbox {
    communicator: Arc<Communicator>,
    peer: i32,
    coming: Note,
    /// Those that no operation has taken.
    offers: VecDeque<Offer>,
}

/// What is left of an operation until the peer's farewell comes.
struct Leaving {
    notes: Vec<Note>,
    farewell: Note,
    line: Option<Line>,
    number: Option<u32>,
}

impl Exchange {
    pub(in crate::stream) fn new(engine: &Engine) -> Exchange {
        let parameters = &engine.core().parameters;
        Exchange {
            exports: Exports::new(engine.devices(), EXPORTS),
            imports: Imports::new(engine.devices(), parameters),
            boards: Boards::default(),
            process: Process::own(),
            waiting: Mutex::default(),
            inboxes: Mutex::default(),
            live: Mutex::default(),
            leaving: Mutex::default(),
            numbers: Mutex::default(),
        }
    }

    /// Begins to agree with the peer.
    pub(in crate::stream) fn begin(
        &self,
        engine: &Arc<Engine>,
        streams: &[Arc<StreamState>],
        pair: &Arc<Pair>,
    ) -> Result<(), Error> {
        if pair.side == Side::Receive {
            self.offer(engine, streams, pair)?;
        }
        self.waiting.lock().push(pair.clone());
        Ok(())
    }

    fn offer(&self, engine: &Arc<Engine>, streams: &[Arc<StreamState>], pair: &Pair) -> Result<(), Error> {
        let number = self.number()?;
        let mut messages = pair.messages.lock();
        messages.number = Some(number);
        let program = &pair.state.program;
        let line = match self.boards.take(program) {
            Some(line) => Ok(line),
            None => while_quiet(engine, streams, PATIENCE, || self.boards.make(program)).and_then(|made| made),
        };
        let place = line.and_then(|line| {
            let place = self.place(engine, pair, &line)?;
            messages.line = Some(line);
            Ok(place)
        });
        let offer = Offer { tag: pair.tag, number, len: pair.buffer.borrow().len(), place };
        let begun = (|| {
            let (on, peer) = (&pair.communicator, pair.peer);
            messages.expected = Some(Note::receive(engine, on, (peer, answer_tag(number)), ANSWER_LEN)?);
            let farewell = farewell_tag(Side::Send, number);
            messages.farewell = Some(Note::receive(engine, on, (peer, farewell), FAREWELL_LEN)?);
            messages.sent.push(Note::send(engine, on, (peer, OFFER), &offer.to_bytes())?);
            Ok(())
        })();
        begun.inspect_err(|_| {
            self.numbers.lock().remove(&number);
        })
    }

    fn number(&self) -> Result<u32, Error> {
        let mut numbers = self.numbers.lock();
        let free = (0..NUMBERS).find(|number| !numbers.contains(number));
        let free = free.ok_or(Error::BadRequest { reason: "8192 prepared receives exist: drop some of them" })?;
        numbers.insert(free);
        Ok(free)
    }

    /// Describes the receiver's buffer and words.
    fn place(&self, engine: &Engine, pair: &Pair, line: &Line) -> Result<Place, Obstacle> {
        let (address, len) = memory(engine, pair)?;
        let location = engine.devices().classify(address, len);
        let exported = self.exports.export(&location, address, len, pair.process).ok_or(Obstacle::NotExported)?;
        if !matches!(exported.kind, ExportKind::Legacy | ExportKind::Hip) {
            return Err(Obstacle::NotExported);
        }
        let offset = (address as u64).checked_sub(exported.base).ok_or(Obstacle::NotExported)?;
        let (descriptor, cookie, line) = line.name();
        Ok(Place { process: self.process, descriptor, cookie, line, exported, offset })
    }

    /// Takes offers and answers that have come.
    pub(in crate::stream) fn advance(&self, engine: &Arc<Engine>, streams: &[Arc<StreamState>]) {
        // Another thread does it otherwise.
        let Some(mut waiting) = self.waiting.try_lock() else { return };
        let mut inboxes = self.inboxes.lock();
        waiting.retain(|pair| {
            let done = match pair.side {
                Side::Send => self.take_offer(engine, streams, &mut inboxes, pair),
                Side::Receive => self.take_answer(engine, pair),
            };
            match done {
                Ok(false) => return true,
                Ok(true) => self.live.lock().push(pair.clone()),
                Err(error) => pair.agree(Err(error)),
            }
            false
        });
    }

    /// Takes an offer for a sender. Returns whether there was one.
    fn take_offer(
        &self,
        engine: &Arc<Engine>,
        streams: &[Arc<StreamState>],
        inboxes: &mut Vec<Inbox>,
        pair: &Pair,
    ) -> Result<bool, Error> {
        let (on, peer) = (&pair.communicator, pair.peer);
        let receive = || Note::receive(engine, on, (peer, OFFER), OFFER_LEN);
        let is_its = |inbox: &Inbox| Arc::ptr_eq(&inbox.communicator, on) && inbox.peer == peer;
        let at = match inboxes.iter().position(is_its) {
            Some(at) => at,
            None => {
                let coming = receive()?;
                inboxes.push(Inbox { communicator: on.clone(), peer, coming, offers: VecDeque::new() });
                inboxes.len() - 1
            }
        };
        let inbox = &mut inboxes[at];
        loop {
            if let Some(taken) = inbox.offers.iter().position(|offer| offer.tag == pair.tag) {
                let Some(offer) = inbox.offers.remove(taken) else { return Ok(false) };
                return self.answer(engine, streams, pair, &offer).map(|()| true);
            }
            let Some(received) = inbox.coming.received() else { return Ok(false) };
            let offer = received.map(Offer::parse);
            match offer {
                Ok(Ok(offer)) => {
                    inbox.offers.push_back(offer);
                    inbox.coming = receive()?;
                }
                Ok(Err(malformed)) => return Err(self.disconnect(engine, pair, &malformed)),
                Err(error) => {
                    inboxes.remove(at);
                    return Err(error);
                }
            }
        }
    }

    /// Answers an offer.
    fn answer(
        &self,
        engine: &Arc<Engine>,
        streams: &[Arc<StreamState>],
        pair: &Pair,
        offer: &Offer,
    ) -> Result<(), Error> {
        let direct = offer.place.and_then(|place| {
            if pair.buffer.borrow().len() > offer.len {
                return Err(Obstacle::TooLong);
            }
            while_quiet(engine, streams, PATIENCE, || self.map(engine, pair, offer, &place)).and_then(|mapped| mapped)
        });
        let answer = Answer(direct.as_ref().map(drop).map_err(|obstacle| *obstacle));
        let (on, peer, number) = (&pair.communicator, pair.peer, offer.number);
        let mut messages = pair.messages.lock();
        messages.number = Some(number);
        let farewell = (peer, farewell_tag(Side::Receive, number));
        messages.farewell = Some(Note::receive(engine, on, farewell, FAREWELL_LEN)?);
        messages.sent.push(Note::send(engine, on, (peer, answer_tag(number)), &answer.to_bytes())?);
        drop(messages);
        match direct {
            Ok(direct) => pair.agree(Ok(Agreed::Direct(direct))),
            Err(obstacle) => pair.agree_on_thread(obstacle, number),
        }
        Ok(())
    }

    /// Maps the receiver's words and buffer.
    fn map(&self, engine: &Engine, pair: &Pair, offer: &Offer, place: &Place) -> Result<Direct, Obstacle> {
        if !matches!(place.exported.kind, ExportKind::Legacy | ExportKind::Hip) {
            return Err(Obstacle::NotExported);
        }
        let (address, len) = memory(engine, pair)?;
        let flags = self.boards.flags(&pair.state.program, place)?;
        let location = engine.devices().classify(address, len);
        // The offset and the receiver's length lie within the export, and this length is no larger.
        debug_assert!(len as u64 <= offer.len);
        match self.imports.reach(pair.process, &place.exported, &location, u64::MAX) {
            Ok(Reach::Mapped(mapped)) => {
                let (from, to) = (address.expose_provenance(), mapped.address(place.offset).expose_provenance());
                *pair.mapped.lock() = Some((place.exported.buffer_id, mapped));
                let program = &pair.state.program;
                let by_kernel = location.context == program.location().context;
                let slot = if by_kernel { program.copy_slot() } else { None };
                Ok(Direct { flags, copy: Some(Copy { from, to, len, slot }) })
            }
            Ok(_) | Err(_) => Err(Obstacle::NotMapped),
        }
    }

    /// Takes the answer to a receiver's offer. Returns whether there was one.
    fn take_answer(&self, engine: &Engine, pair: &Pair) -> Result<bool, Error> {
        let mut messages = pair.messages.lock();
        let Some(received) = messages.expected.as_ref().and_then(Note::received) else { return Ok(false) };
        let answer = received.map(Answer::parse)?;
        messages.expected = None;
        let number = messages.number.unwrap_or_default();
        let flags = messages.line.as_ref().map(Line::flags);
        match (answer, flags) {
            (Ok(Answer(Ok(()))), Some(flags)) => pair.agree(Ok(Agreed::Direct(Direct { flags, copy: None }))),
            (Ok(Answer(Err(obstacle))), _) => {
                messages.line = None;
                pair.agree_on_thread(obstacle, number);
            }
            (Ok(Answer(Ok(()))), None) => {
                return Err(self.disconnect(engine, pair, &Malformed::Prepared("an answer to no offer")));
            }
            (Err(malformed), _) => return Err(self.disconnect(engine, pair, &malformed)),
        }
        Ok(true)
    }

    fn disconnect(&self, engine: &Engine, pair: &Pair, malformed: &Malformed) -> Error {
        if let Some(slot) = engine.known(pair.process) {
            let mut done = Done::default();
            core::disconnect(engine, slot, malformed, &mut done);
            done.run();
        }
        Error::PeerFailed { peer: pair.process, reason: malformed.to_string().into() }
    }

    /// Looks for peers that are gone, and releases streams. Returns whether anything is new. Called by the thread.
    pub(in crate::stream) fn look(&self, engine: &Engine) -> bool {
        let live = self.live.lock().clone();
        let mut moved = false;
        for pair in &live {
            match pair.look() {
                Ok(new) => moved |= new,
                Err(malformed) => {
                    let error = self.disconnect(engine, pair, &malformed);
                    pair.lose_peer(&error);
                }
            }
            pair.release();
        }
        self.let_go();
        moved
    }

    /// Forgets operations whose peers have said farewell, too.
    fn let_go(&self) {
        let mut gone = Vec::new();
        self.leaving.lock().retain_mut(|leaving| {
            leaving.notes.retain(|note| !note.is_over());
            let Some(received) = leaving.farewell.received() else { return true };
            if received.is_err() {
                // The peer may be alive, and its stream may still write the line.
                std::mem::forget(leaving.line.take());
            }
            gone.extend(leaving.number);
            !leaving.notes.is_empty()
        });
        let mut numbers = self.numbers.lock();
        gone.iter().for_each(|number| {
            numbers.remove(number);
        });
    }

    /// Returns how long the thread may sleep; `None` if nobody waits for anything. Then the next post wakes it.
    pub(in crate::stream) fn interval(&self) -> Option<Duration> {
        let live = self.live.lock();
        if live.iter().any(|pair| pair.release()) {
            return Some(RELEASE);
        }
        let leaving = || self.leaving.lock().iter().any(|leaving| !leaving.notes.is_empty());
        (live.iter().any(|pair| pair.needs_watch()) || leaving()).then_some(WATCH)
    }

    /// Ends every operation: its stream waits no longer.
    pub(in crate::stream) fn give_up(&self, error: &Error) {
        self.live.lock().iter().for_each(|pair| pair.fail(error));
    }

    /// Says farewell for an operation that its stream has passed and that nobody posts any more.
    pub(in crate::stream) fn end(&self, engine: &Arc<Engine>, streams: &[Arc<StreamState>], pair: &Arc<Pair>) {
        self.waiting.lock().retain(|other| !Arc::ptr_eq(other, pair));
        self.live.lock().retain(|other| !Arc::ptr_eq(other, pair));
        if let Some((buffer_id, mapped)) = pair.mapped.lock().take() {
            // The driver waits for streams before it unmaps. If some have work, the mapping stays in the cache.
            let unmapped = while_quiet(engine, streams, Duration::ZERO, move || {
                self.imports.forget(pair.process, buffer_id);
                drop(mapped);
            });
            log::debug!("unmapped the buffer of a prepared operation: {}", unmapped.is_ok());
        }
        let mut messages = std::mem::take(&mut *pair.messages.lock());
        let (Some(number), Some(farewell)) = (messages.number, messages.farewell.take()) else { return };
        let mut notes = messages.sent;
        notes.extend(messages.expected);
        let last = pair.farewell();
        let tag = farewell_tag(pair.side, number);
        match Note::send(engine, &pair.communicator, (pair.peer, tag), &last.to_bytes()) {
            Ok(note) => notes.push(note),
            Err(error) => log::debug!("rank {} is not told the end of a prepared operation: {error}", pair.peer),
        }
        let number = messages.number.filter(|_| pair.side == Side::Receive);
        self.leaving.lock().push(Leaving { notes, farewell, line: messages.line, number });
    }
}

/// Returns the address and length of an operation's buffer, if another process's device can access it.
fn memory(engine: &Engine, pair: &Pair) -> Result<(*mut u8, usize), Obstacle> {
    if pair.communicator.rank() as i32 == pair.peer {
        return Err(Obstacle::SameProcess);
    }
    if engine.core().copy_only() {
        return Err(Obstacle::CopyOnly);
    }
    let (address, len) = pair.buffer.borrow().contiguous().ok_or(Obstacle::Blocks)?;
    let len = usize::try_from(len).map_err(|_| Obstacle::TooLong)?;
    let location = engine.devices().classify(address, len);
    if len == 0 || location.class != MemoryClass::Device {
        return Err(Obstacle::NotOnDevice);
    }
    if !engine.devices().one_allocation(&location, address, len) {
        return Err(Obstacle::NotExported);
    }
    Ok((address, len))
}
