//! The owner's side: registered memory, and what peers ask of it.
//!
//! An ask is checked before anything is written: the key of the data and that of the signal, both ranges, and the
//! alignment of words. What passes is pinned until it is done.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_base::lock::{Lock, Locking};
use cableway_common_cuda::{Devices, Location};

use super::key::Name;
use super::registry::{Pin, Region, Registry, Span};
use super::wire::{ANSWER, Answer, Ask, Change, GIVEN, SignalAsk, Update, Wish};
use super::words::{self, Word, Words};
use crate::am::{Arrival, INLINE_LIMIT, Poster};
use crate::buffer::Buffer;
use crate::core::{self, Done};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::tag::Engine;
use crate::wire::Malformed;

/// The registered memory of a process.
pub(super) struct Owner {
    registry: Lock<Registry>,
    drawn: Lock<Drawn>,
    words: Words,
}

impl Default for Owner {
    fn default() -> Self {
        let (registry, drawn) = (Registry::default(), Drawn { bytes: [[0; 16]; DRAWN], left: 0 });
        let real = Locking::REAL;
        Owner { registry: Lock::new(real, registry), drawn: Lock::new(real, drawn), words: Words::default() }
    }
}

/// The number of authenticators that are drawn at a time. A system call for each would be most of the time of a
/// registration of memory that was registered before.
const DRAWN: usize = 64;

/// Random bytes of the system. Each is used once.
struct Drawn {
    bytes: [[u8; 16]; DRAWN],
    left: usize,
}

impl Drawn {
    /// Returns random bytes, or `None` if the system has none.
    fn authenticator(&mut self) -> Option<[u8; 16]> {
        if self.left == 0 {
            self.draw()?;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.bytes[self.left]))
    }

    #[cold]
    fn draw(&mut self) -> Option<()> {
        let bytes = self.bytes.as_flattened_mut();
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        self.left = DRAWN;
        Some(())
    }
}

impl Owner {
    /// Adds memory, whose location was looked up.
    pub(super) fn add(&self, region: Region) -> Result<Name, Error> {
        let drawn = self.drawn.lock().authenticator();
        let authenticator = drawn.ok_or(Error::BadRegistration { reason: "the system has no random numbers" })?;
        let added = self.registry.lock().add(region, authenticator);
        added.ok_or(Error::BadRegistration { reason: "its addresses wrap around" })
    }

    /// Admits no more accesses.
    pub(super) fn close(&self, name: &Name) {
        self.registry.lock().close(name);
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

    /// Does what a peer asks for, and answers. Data may land later.
    pub(super) fn serve(self: &Arc<Self>, arrival: Arrival<'_>) {
        let ask = match Ask::parse(arrival.header()) {
            Ok(ask) => ask,
            Err(malformed) => return disconnect(arrival.poster().engine(), arrival.source(), &malformed),
        };
        let number = ask.number;
        if let (Wish::Put(signal), Some(bytes)) = (&ask.wish, arrival.data())
            && let Some(result) = self.put_at_once(&ask.span, bytes, signal.as_ref())
        {
            return answer(arrival.poster(), arrival.source(), Answer { number, result, value: 0 });
        }
        let reply = Reply { poster: arrival.poster().clone(), to: arrival.source(), number };
        match ask.wish {
            Wish::Put(signal) => self.put(arrival, &ask.span, signal, reply),
            Wish::Get(signal) => match self.admit(&ask.span, signal) {
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
        if let (Some(word), Some(SignalAsk { update, value, .. })) = (word, signal) {
            // SAFETY: as above; the word is aligned.
            unsafe { words::change_host(word, Change { update: *update, value: *value, compare: 0 }) };
        }
        Some(Ok(()))
    }

    fn put(self: &Arc<Self>, arrival: Arrival<'_>, span: &Span, signal: Option<SignalAsk>, reply: Reply) {
        let admitted = self.admit(span, signal);
        let complete = arrival.len() == span.len;
        let (data, signal) = match admitted.and_then(|both| complete.then_some(both).ok_or(Refusal::Incomplete)) {
            Ok(admitted) => admitted,
            // The drop of the arrival drops its data.
            Err(refusal) => return reply.answer(Err(refusal)),
        };
        let into = data.buffer(reply.devices());
        let landing = Landing { data, signal, reply };
        // SAFETY: the memory is pinned until the landing is dropped, and peers may write it.
        unsafe { arrival.receive(into, move |landed| landing.end(landed)) };
    }

    /// Pins what an operation moves, and the word of its signal.
    fn admit(self: &Arc<Self>, span: &Span, signal: Option<SignalAsk>) -> Result<(Pinned, Option<Due>), Refusal> {
        let data = self.pin(span)?;
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
        Pinned { owner: self.clone(), address, len, location, pin: Some(pin) }
    }

    fn pin_word(self: &Arc<Self>, span: &Span) -> Result<PinnedWord, Refusal> {
        let pinned = self.pin(span)?;
        let word = Word { address: pinned.address, width: span.len, location: pinned.location };
        if word.is_aligned() { Ok(PinnedWord { pinned, word }) } else { Err(Refusal::Misaligned) }
    }
}

/// Bytes of registered memory, which stays registered until this is dropped.
pub(super) struct Pinned {
    owner: Arc<Owner>,
    pub(super) address: usize,
    pub(super) len: u64,
    pub(super) location: Location,
    /// `None` in the drop only.
    pin: Option<Pin>,
}

impl Pinned {
    /// Describes the bytes. Copies follow no default stream while one of the program's streams may wait for a signal,
    /// because the default stream may wait for that one.
    fn buffer(&self, devices: &Devices) -> Buffer<'static> {
        let buffer = Buffer::bytes(std::ptr::with_exposed_provenance(self.address), self.len);
        if devices.are_mappings_held() { buffer.settled() } else { buffer }
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
        let SignalAsk { update, value, .. } = self.ask;
        self.word.change(devices, Change { update, value, compare: 0 }).map(drop)
    }
}

/// Answers a get. Gives the signal before, if nothing can fail after the bytes are read.
fn get(data: Pinned, signal: Option<Due>, reply: &Reply) {
    let at_once = data.len == 0 || (data.len <= INLINE_LIMIT as u64 && !data.location.on_device());
    let Some(signal) = signal.filter(|_| at_once) else {
        // The peer asks for the signal once it has the data.
        let buffer = data.buffer(reply.devices());
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_authenticator_is_used_twice() {
        let owner = Owner::default();
        let region = Region { address: 4096, len: 8, location: Location::HOST };
        let names: Vec<Name> = (0..3 * DRAWN).map(|_| owner.add(region).unwrap()).collect();
        let different: HashSet<[u8; 16]> = names.iter().map(|name| name.authenticator).collect();
        assert_eq!(different.len(), 3 * DRAWN);
        assert!(!different.contains(&[0; 16]));
    }
}
