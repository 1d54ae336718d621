//! The owner's side: registered memory, and what peers ask of it.
//!
//! An ask is checked before anything is written: the key of the data and that of the signal, both ranges, all elements of
//! a layout included, and the alignment of words. What passes is pinned until it is done.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_base::lock::{Lock, Locking};
use cableway_common_cuda::{Devices, Location};
use parking_lot::RwLock;

use super::authenticators::Authenticators;
use super::key::Name;
use super::ranges::{Known, Ranges};
use super::registry::{Pin, Region, Registry, Span};
use super::target;
use super::wire::{ANSWER, Answer, Ask, Change, GIVEN, SignalAsk, Update, Wish};
use super::words::{self, Word, Words};
use crate::am::{Arrival, INLINE_LIMIT, Poster};
use crate::buffer::Buffer;
use crate::core::{self, Done};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::shapes::{Elements, Gathered};
use crate::tag::Engine;
use crate::wire::Malformed;

/// The registered memory of a process.
pub(super) struct Owner {
    registry: Lock<Registry>,
    ranges: RwLock<Ranges>,
    authenticators: Lock<Authenticators>,
    shapes: Gathered,
    words: Words,
}

impl Default for Owner {
    fn default() -> Self {
        let real = Locking::REAL;
        let (registry, authenticators) = (Lock::new(real, Registry::default()), Lock::new(real, Default::default()));
        Owner {
            registry,
            ranges: RwLock::default(),
            authenticators,
            shapes: Gathered::default(),
            words: Words::default(),
        }
    }
}

impl Owner {
    /// Adds memory, whose location was looked up, and what buffers in it can be told of that.
    pub(super) fn add(&self, region: Region, known: Option<Known>) -> Result<Name, Error> {
        let drawn = self.authenticators.lock().draw();
        let authenticator = drawn.ok_or(Error::BadRegistration { reason: "the system has no random numbers" })?;
        let added = self.registry.lock().add(region, authenticator);
        let name = added.ok_or(Error::BadRegistration { reason: "its addresses wrap around" })?;
        if let Some(known) = known {
            self.ranges.write().add(region.range(), known);
        }
        Ok(name)
    }

    /// Admits no more accesses.
    pub(super) fn close(&self, name: &Name, region: &Region) {
        if self.registry.lock().close(name) {
            self.ranges.write().remove(region.range());
        }
    }

    /// Returns where bytes lie, if they are registered.
    pub(super) fn find(&self, address: usize, len: usize) -> Option<Known> {
        self.ranges.read().find(address, len)
    }

    /// Removes closed memory unless an access is under way. Returns whether it is removed.
    pub(super) fn remove(&self, name: &Name) -> bool {
        self.registry.lock().remove(name)
    }

    /// Reads a word of registered memory.
    pub(super) fn load(self: &Arc<Self>, devices: &Devices, span: &Span) -> Result<u64, Error> {
        let bad = |reason| Error::BadWord { offset: span.offset, reason };
        // A wait calls this in a loop, so it counts no references.
        let pin = self.registry.lock().pin(span).map_err(bad)?;
        let word = Word { address: pin.address, width: span.len, location: pin.location };
        // SAFETY: the word is registered and pinned, and aligned.
        let loaded = word.is_aligned().then(|| unsafe { self.words.load(devices, word) });
        self.registry.lock().unpin(pin);
        let loaded = loaded.ok_or(Refusal::Misaligned).map_err(bad)?;
        loaded.map_err(|source| Error::Device { address: word.address, len: word.width, source })
    }

    /// Writes a word of this process's registered memory.
    pub(super) fn store(self: &Arc<Self>, devices: &Devices, span: &Span, value: u64) -> Result<(), Error> {
        let word = self.pin_word(span).map_err(|reason| Error::BadWord { offset: span.offset, reason })?;
        let set = Change { update: Update::Set, value, compare: 0 };
        word.change(devices, set).map(drop).map_err(|reason| Error::BadWord { offset: span.offset, reason })
    }

    /// Keeps blocks that a peer sends before its ask.
    pub(super) fn gather(&self, arrival: &Arrival<'_>) {
        if let Err(malformed) = self.shapes.arrive(arrival) {
            disconnect(arrival.poster().engine(), arrival.source(), &malformed);
        }
    }

    /// Parses an ask, and rebuilds its elements: an error if they can be nowhere.
    fn read(&self, arrival: &Arrival<'_>) -> Result<(Ask, Option<Reaching>), Malformed> {
        let (ask, shape) = Ask::parse(arrival.header())?;
        let Some((form, inline)) = shape else { return Ok((ask, None)) };
        let blocks = self.shapes.complete(arrival.source(), inline, form.blocks)?;
        let elements = Elements::of_blocks(&blocks, form.count, form.extent).ok_or(Refusal::OutOfRange);
        Ok((ask, Some(elements)))
    }

    /// Does what a peer asks for, and answers. Data may land later.
    pub(super) fn serve(self: &Arc<Self>, arrival: Arrival<'_>) {
        let (ask, elements) = match self.read(&arrival) {
            Ok(read) => read,
            Err(malformed) => return disconnect(arrival.poster().engine(), arrival.source(), &malformed),
        };
        let number = ask.number;
        if let (Wish::Put(signal), Some(bytes), None) = (&ask.wish, arrival.data(), &elements)
            && let Some(result) = self.put_at_once(&ask.span, bytes, signal.as_ref())
        {
            return answer(arrival.poster(), arrival.source(), Answer { number, result, value: 0 });
        }
        let reply = Reply { poster: arrival.poster().clone(), to: arrival.source(), number };
        match ask.wish {
            Wish::Put(signal) => self.put(arrival, (&ask.span, elements), signal, reply),
            Wish::Get(signal) => match self.admit((&ask.span, elements), signal) {
                Ok((data, signal)) => get(data, signal, &reply),
                Err(refusal) => reply.answer(Err(refusal)),
            },
            Wish::Atomic(change) => {
                let changed = self.pin_word(&ask.span).and_then(|word| word.change(reply.devices(), change));
                reply.answer(changed);
            }
        }
    }

    /// Copies little data from host to host, the usual case, and gives the signal. The table stays locked meanwhile, so that
    /// nothing need be pinned. Returns `None`, and does nothing, if a device has the memory or the word.
    fn put_at_once(&self, span: &Span, bytes: &[u8], signal: Option<&SignalAsk>) -> Option<Result<(), Refusal>> {
        let mut registry = self.registry.lock();
        let found = registry.find(span).and_then(|place| {
            let word = signal.map(|signal| registry.find(&signal.word)).transpose()?;
            Ok((place, word.map(|Region { address, len, location }| Word { address, width: len, location })))
        });
        let (place, word) = match found {
            Ok(found) => found,
            Err(refusal) => return Some(Err(refusal)),
        };
        if place.location.on_device() || word.is_some_and(|word| word.location.on_device()) {
            return None;
        }
        if word.is_some_and(|word| !word.is_aligned()) {
            return Some(Err(Refusal::Misaligned));
        }
        if bytes.len() as u64 != place.len {
            return Some(Err(Refusal::Incomplete));
        }
        let into = std::ptr::with_exposed_provenance_mut::<u8>(place.address);
        // SAFETY: the registered memory has as many bytes and may be written by peers. It stays registered while the table
        // is locked.
        unsafe { std::ptr::copy(bytes.as_ptr(), into, bytes.len()) };
        if let (Some(word), Some(signal)) = (word, signal) {
            // SAFETY: as above; the word is aligned.
            unsafe { words::change_host(word, signal.change()) };
        }
        Some(Ok(()))
    }

    fn put(
        self: &Arc<Self>,
        arrival: Arrival<'_>,
        to: (&Span, Option<Reaching>),
        signal: Option<SignalAsk>,
        reply: Reply,
    ) {
        let complete = arrival.len() == to.0.len;
        let admitted = self.admit(to, signal);
        let (data, signal) = match admitted.and_then(|both| complete.then_some(both).ok_or(Refusal::Incomplete)) {
            Ok(admitted) => admitted,
            // The drop of the arrival drops its data.
            Err(refusal) => return reply.answer(Err(refusal)),
        };
        let elements = data.elements.clone();
        let into = data.buffer(elements.as_deref(), reply.devices());
        let landing = Landing { data, signal, reply };
        // SAFETY: the memory is pinned until the landing is dropped, and peers may write it.
        unsafe { arrival.receive(into, move |landed| landing.end(landed)) };
    }

    /// Pins what an operation moves, and the word of its signal.
    fn admit(
        self: &Arc<Self>,
        (span, elements): (&Span, Option<Reaching>),
        signal: Option<SignalAsk>,
    ) -> Result<(Pinned, Option<Due>), Refusal> {
        let data = match elements.transpose()? {
            None => self.pin(span)?,
            Some(elements) => {
                let mut data = self.pin(&target::range(span, &elements)?)?;
                (data.len, data.elements) = (span.len, Some(Arc::new(elements)));
                data
            }
        };
        let due = signal.map(|ask| Ok(Due { word: self.pin_word(&ask.word)?, ask })).transpose()?;
        Ok((data, due))
    }

    /// Pins all of a registration that a peer names.
    pub(super) fn pin_all(self: &Arc<Self>, name: &Name) -> Result<Pinned, Refusal> {
        let pin = self.registry.lock().pin_all(name)?;
        Ok(self.pinned(pin))
    }

    fn pin(self: &Arc<Self>, span: &Span) -> Result<Pinned, Refusal> {
        let pin = self.registry.lock().pin(span)?;
        Ok(self.pinned(pin))
    }

    fn pinned(self: &Arc<Self>, pin: Pin) -> Pinned {
        let Pin { address, len, location, .. } = pin;
        Pinned { owner: self.clone(), address, len, location, elements: None, pin: Some(pin) }
    }

    fn pin_word(self: &Arc<Self>, span: &Span) -> Result<PinnedWord, Refusal> {
        let pinned = self.pin(span)?;
        let word = Word { address: pinned.address, width: span.len, location: pinned.location };
        if word.is_aligned() { Ok(PinnedWord { pinned, word }) } else { Err(Refusal::Misaligned) }
    }
}

/// The elements that a peer's ask reaches, or why they can be nowhere.
type Reaching = Result<Elements, Refusal>;

/// Bytes of registered memory, which stays registered until this is dropped.
pub(super) struct Pinned {
    owner: Arc<Owner>,
    /// Of the lowest byte.
    pub(super) address: usize,
    /// The bytes of data.
    pub(super) len: u64,
    pub(super) location: Location,
    /// `None`: one run.
    elements: Option<Arc<Elements>>,
    /// `None` in the drop only.
    pin: Option<Pin>,
}

impl Pinned {
    /// Describes the bytes. The elements are its own, which the buffer borrows.
    fn buffer<'e>(&self, elements: Option<&'e Elements>, devices: &Devices) -> Buffer<'e> {
        target::buffer(std::ptr::with_exposed_provenance(self.address), self.len, elements).for_peer(devices)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take() {
            self.owner.registry.lock().unpin(pin);
        }
    }
}

/// A word of registered memory, which is aligned.
struct PinnedWord {
    pinned: Pinned,
    word: Word,
}

impl PinnedWord {
    fn change(&self, devices: &Devices, change: Change) -> Result<u64, Refusal> {
        // SAFETY: the word is registered and pinned, and was checked to be aligned.
        let changed = unsafe { self.pinned.owner.words.change(devices, self.word, change) };
        changed.map_err(|error| {
            log::warn!("cannot change a word of registered memory for a peer: {error}");
            Refusal::Device
        })
    }
}

/// A signal that is to be given.
struct Due {
    word: PinnedWord,
    ask: SignalAsk,
}

impl Due {
    fn give(self, devices: &Devices) -> Result<(), Refusal> {
        self.word.change(devices, self.ask.change()).map(drop)
    }
}

/// Answers a get. Gives the signal before, if nothing can fail after the bytes are read.
fn get(data: Pinned, signal: Option<Due>, reply: &Reply) {
    let little = data.len <= INLINE_LIMIT as u64 && !data.location.on_device() && data.elements.is_none();
    let at_once = data.len == 0 || little;
    let Some(signal) = signal.filter(|_| at_once) else {
        // The peer asks for the signal once it has the data.
        let elements = data.elements.clone();
        let buffer = data.buffer(elements.as_deref(), reply.devices());
        return reply.answer_with(0, buffer, data);
    };
    let mut bytes = vec![0_u8; data.len as usize];
    let from = std::ptr::with_exposed_provenance::<u8>(data.address);
    // SAFETY: this host memory is pinned and has as many bytes. Which bytes are read while a peer writes is not promised.
    unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
    // A peer that knows that its get is complete must not find the memory pinned by it.
    drop(data);
    match signal.give(reply.devices()) {
        Ok(()) => reply.answer_with(GIVEN, Buffer::bytes(bytes.as_ptr(), bytes.len() as u64), bytes),
        Err(refusal) => reply.answer(Err(refusal)),
    }
}

/// A put whose data is on its way.
struct Landing {
    data: Pinned,
    signal: Option<Due>,
    reply: Reply,
}

impl Landing {
    /// Gives the signal, and answers.
    fn end(self, landed: Result<u64, Error>) {
        let Landing { data, signal, reply } = self;
        let result = match landed {
            Ok(bytes) if bytes == data.len => signal.map_or(Ok(()), |signal| signal.give(reply.devices())),
            Err(Error::Device { .. }) => Err(Refusal::Device),
            _ => Err(Refusal::Incomplete),
        };
        // A peer that knows that its put is complete must not find the memory pinned by it.
        drop(data);
        reply.answer(result.map(|_| 0));
    }
}

/// Where an answer goes.
struct Reply {
    poster: Poster,
    to: u32,
    number: u64,
}

impl Reply {
    fn devices(&self) -> &Devices {
        self.poster.engine().devices()
    }

    fn content(&self, result: Result<u64, Refusal>) -> Answer {
        Answer { number: self.number, result: result.map(drop), value: result.unwrap_or(0) }
    }

    fn answer(&self, result: Result<u64, Refusal>) {
        answer(&self.poster, self.to, self.content(result));
    }

    /// Answers with the data of a get, which stays where it is while `keeper` lives.
    fn answer_with(&self, value: u64, data: Buffer<'_>, keeper: impl Send + 'static) {
        let header = self.content(Ok(value)).to_bytes();
        // SAFETY: the data is kept. Peers may write it meanwhile; which bytes are sent then is not promised.
        let posted = unsafe { self.poster.post_then(self.to, ANSWER, &header, data, move |_sent| drop(keeper)) };
        note_lost(self.to, posted);
    }
}

/// Posts an answer without data.
fn answer(poster: &Poster, to: u32, content: Answer) {
    // SAFETY: there is no data.
    let posted = unsafe { poster.post_inline(to, ANSWER, &content.to_bytes(), Buffer::EMPTY) };
    note_lost(to, posted.map(drop));
}

fn note_lost(to: u32, posted: Result<(), Error>) {
    if let Err(error) = posted {
        log::debug!("an answer about registered memory is lost with rank {to}: {error}");
    }
}

/// Disconnects a peer that sent malformed bytes. Ranks of the communicator are those of the job.
pub(super) fn disconnect(engine: &Engine, peer: Rank, malformed: &Malformed) {
    if let Some(slot) = engine.known(peer) {
        let mut done = Done::default();
        core::disconnect(engine, slot, malformed, &mut done);
        done.run();
    }
}
