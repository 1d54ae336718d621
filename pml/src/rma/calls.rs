//! The calls that start puts, gets and atomic operations.
//!
//! They check what the key tells. An operation on memory that is mapped here is complete at once. Any other one goes to
//! the window of operations to its target.

use std::ptr::NonNull;

use cableway_base::Rank;
use cableway_common_cuda::MemoryClass;

use super::OneSided;
use super::key::{Place, RemoteKey};
use super::kinds::{AtomicOperation, Signal, SignalUpdate, Width};
use super::local::{Local, Memory};
use super::operation::Operation;
use super::registry::Span;
use super::scattered::{self, Way};
use super::target::Target;
use super::wire::{Ask, Change, SignalAsk, Update, Wish};
use super::words;
use crate::am::INLINE_LIMIT;
use crate::buffer::Buffer;
use crate::core::Active;
use crate::error::Error;
use crate::shapes::Elements;
use crate::status::Outcome;
use crate::tag::Request;

/// An operation whose arguments were checked.
struct Checked<'k> {
    key: &'k RemoteKey,
    span: Span,
    elements: Option<Box<Elements>>,
    wish: Wish,
    local: Local,
}

impl Checked<'_> {
    /// Returns the memory of a put or get.
    fn memory(&self) -> Option<&Memory> {
        match &self.local {
            Local::Put(memory) | Local::Get(memory) => Some(memory),
            Local::Atomic(_) => None,
        }
    }
}

impl OneSided {
    /// Starts to copy `from`, on the host or a device, to `to`. Either may have a layout. Then `signal` is given. If the answer is
    /// [`Outcome::Complete`], both are done at the target and the request is not active. Otherwise the request completes
    /// when both are done.
    ///
    /// # Safety
    /// As [`Engine::isend`](crate::Engine::isend).
    ///
    /// # Errors
    /// The target is not within the memory or has another length than the buffer, the signal is misaligned or of another
    /// process, or the target's process is gone. The request is not active then. Later failures are reported in the request.
    pub unsafe fn put<'k>(
        &self,
        from: Buffer<'_>,
        to: impl Into<Target<'k>>,
        signal: Option<Signal<'_>>,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        let memory = Memory::of(self.locate(from))?;
        let (place, elements) = to.into().find(memory.len)?;
        let span = self.span(place, memory.len, elements.as_deref())?;
        let asked = signal.map(|signal| self.signal(&signal, place.key.rank())).transpose()?;
        let (wish, local) = (Wish::Put(asked), Local::Put(memory));
        // SAFETY: the caller's promise.
        unsafe { self.move_bytes(Checked { key: place.key, span, elements, wish, local }, signal, request) }
    }

    /// Checks the arguments of a [`put`](Self::put) of one run of bytes that starts later.
    ///
    /// # Errors
    /// As there, or the buffer is not one run.
    pub fn check_put(&self, from: Buffer<'_>, to: Place<'_>, signal: Option<Signal<'_>>) -> Result<(), Error> {
        let len = from.packed_len()?;
        from.contiguous().ok_or(Error::NotContiguous)?;
        self.span(to, len, None)?;
        signal.map(|signal| self.signal(&signal, to.key.rank())).transpose()?;
        self.check_peer(to.key.rank())
    }

    /// Fails if process `rank` is gone. Watches it from now on.
    ///
    /// # Errors
    /// It is gone, or there is no such process.
    pub fn check_peer(&self, rank: Rank) -> Result<(), Error> {
        self.check_rank(rank)?;
        self.caller.check(rank)
    }

    /// Starts to copy from `from` to `into`, on the host or a device. Either may have a layout. Fills the buffer. Then `signal`
    /// is given. Answers as [`put`](Self::put) does.
    ///
    /// # Safety
    /// As [`Engine::irecv`](crate::Engine::irecv).
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub unsafe fn get<'k>(
        &self,
        into: Buffer<'_>,
        from: impl Into<Target<'k>>,
        signal: Option<Signal<'_>>,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        let memory = Memory::of(self.locate(into))?;
        let (place, elements) = from.into().find(memory.len)?;
        let span = self.span(place, memory.len, elements.as_deref())?;
        let asked = signal.map(|signal| self.signal(&signal, place.key.rank())).transpose()?;
        let (wish, local) = (Wish::Get(asked), Local::Get(memory));
        // SAFETY: the caller's promise.
        unsafe { self.move_bytes(Checked { key: place.key, span, elements, wish, local }, signal, request) }
    }

    /// Tells a buffer where it lies, if it lies in memory that this process has registered.
    fn locate<'b>(&self, buffer: Buffer<'b>) -> Buffer<'b> {
        let unknown = buffer.layout().is_none() && buffer.allocation().is_none() && !buffer.is_in_host();
        let (address, len) = (buffer.address(), buffer.count() as usize);
        // Another thread may have held the lock when this process was forked.
        if !unknown || self.engine.is_forked() || !self.engine.devices().asks_about(address, len) {
            return buffer;
        }
        let found = self.exposing.owner.find(address.expose_provenance(), len);
        found.map_or(buffer, |known| known.of(buffer))
    }

    /// Moves the bytes of a put or get at once, if the memory is mapped here, or starts to.
    ///
    /// # Safety
    /// As [`put`](Self::put) or [`get`](Self::get).
    unsafe fn move_bytes(
        &self,
        checked: Checked<'_>,
        signal: Option<Signal<'_>>,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        let key = checked.key;
        // SAFETY: the caller's promise.
        if key.is_mappable() && unsafe { self.by_processor(&checked) }? {
            return Ok(Outcome::Complete);
        }
        // SAFETY: the caller's promise.
        unsafe { self.start(checked, request)? };
        self.want(key);
        if let Some(signal) = &signal {
            self.want(signal.at.key);
        }
        Ok(Outcome::Started)
    }

    /// Starts an atomic operation on the word at `at`, and stores the word before it in `old`. The target's CPU makes it,
    /// or this one's if the memory is mapped here. Answers as [`put`](Self::put) does.
    ///
    /// # Safety
    /// `old` has as many bytes as the word. It and the request stay valid and untouched until the request completes.
    ///
    /// # Errors
    /// The word is not within the memory or is misaligned, or the target is gone. Later failures are in the request.
    pub unsafe fn atomic(
        &self,
        operation: AtomicOperation,
        width: Width,
        at: Place<'_>,
        old: *mut u8,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        let bytes = match width {
            Width::Four => 4,
            Width::Eight => 8,
        };
        let span = self.word(at, bytes)?;
        let (update, value, compare) = match operation {
            AtomicOperation::Add(value) => (Update::Add, value, 0),
            AtomicOperation::Swap(value) => (Update::Set, value, 0),
            AtomicOperation::CompareSwap { expected, new } => (Update::CompareSet, new, expected),
            AtomicOperation::And(value) => (Update::And, value, 0),
            AtomicOperation::Or(value) => (Update::Or, value, 0),
            AtomicOperation::Xor(value) => (Update::Xor, value, 0),
        };
        let change = Change { update, value, compare };
        if at.key.is_mappable()
            && let Some(before) = self.change(at.key, &span, change)?
        {
            // SAFETY: the caller's promise.
            unsafe { old.copy_from_nonoverlapping(before.to_le_bytes().as_ptr(), bytes as usize) };
            return Ok(Outcome::Complete);
        }
        let (wish, local) = (Wish::Atomic(change), Local::Atomic(old.expose_provenance()));
        // SAFETY: the caller's promise.
        unsafe { self.start(Checked { key: at.key, span, elements: None, wish, local }, request)? };
        self.want(at.key);
        Ok(Outcome::Started)
    }

    /// Puts by stores or gets by loads, if the memory and the signal's word are mapped here. Returns whether it did.
    ///
    /// # Safety
    /// As [`put`](Self::put) or [`get`](Self::get).
    unsafe fn by_processor(&self, checked: &Checked<'_>) -> Result<bool, Error> {
        self.engine.core().check_open()?;
        let Checked { key, span, elements, wish, .. } = checked;
        let (way, signal) = match wish {
            Wish::Put(signal) => (Way::Store, signal),
            Wish::Get(signal) => (Way::Fetch, signal),
            Wish::Atomic(_) => return Ok(false),
        };
        let (Some(memory), devices) = (checked.memory(), self.engine.devices()) else { return Ok(false) };
        if memory.is_on_device(devices) {
            return Ok(false);
        }
        let elements = elements.as_deref();
        let range = Span { len: elements.map_or(span.len, Elements::range), ..*span };
        // SAFETY: the caller promises that this host memory is valid, and the other is mapped and may be written.
        let copy = |place| unsafe { scattered::copy(devices, memory, (place, elements), way) };
        Ok(self.by_mapping(key.rank(), &range, signal.as_ref(), copy))
    }

    /// Has `copy` move the bytes of a peer's memory, and then gives the signal, if both are mapped here. Returns whether both
    /// were done.
    fn by_mapping(
        &self,
        peer: Rank,
        span: &Span,
        signal: Option<&SignalAsk>,
        copy: impl FnOnce(*mut u8) -> bool,
    ) -> bool {
        let caller = &self.caller;
        let done = match signal {
            None => caller.with_mapped(peer, span, copy).filter(|copied| *copied).map(drop),
            Some(signal) => caller
                .with_mapped(peer, &signal.word, |word| {
                    let word = words::mapped(word, 8)?;
                    caller.with_mapped(peer, span, copy).filter(|copied| *copied)?;
                    // The change is a release: whoever sees it sees the data of a put, or may overwrite that of a get.
                    // SAFETY: the word is mapped and aligned.
                    Some(unsafe { words::change_host(word, signal.change()) })
                })
                .flatten()
                .map(drop),
        };
        if done.is_some() {
            caller.note_direct();
        }
        done.is_some()
    }

    /// Changes a word that is mapped here. Returns its value before.
    fn change(&self, key: &RemoteKey, span: &Span, change: Change) -> Result<Option<u64>, Error> {
        self.engine.core().check_open()?;
        let changed = self.caller.with_mapped(key.rank(), span, |place| {
            // SAFETY: the word is mapped and aligned.
            words::mapped(place, span.len).map(|word| unsafe { words::change_host(word, change) })
        });
        let changed = changed.flatten();
        if changed.is_some() {
            self.caller.note_direct();
        }
        Ok(changed)
    }

    /// Asks for the exposure of memory that could be mapped.
    fn want(&self, key: &RemoteKey) {
        if key.is_mappable() {
            self.caller.want(key.rank(), &key.name());
        }
    }

    /// # Safety
    /// As [`put`](Self::put), [`get`](Self::get) or [`atomic`](Self::atomic).
    unsafe fn start(&self, checked: Checked<'_>, request: *const Request) -> Result<(), Error> {
        let Checked { key, span, elements, wish, local } = checked;
        self.engine.core().check_open()?;
        let Some(request) = NonNull::new(request.cast_mut()) else {
            return Err(Error::BadRequest { reason: "it is null" });
        };
        let to = key.rank();
        let on_device = matches!(key.class(), Some(MemoryClass::Device | MemoryClass::Managed));
        let may_be_direct = !matches!(local, Local::Atomic(_)) && (on_device || span.len > INLINE_LIMIT as u64);
        if may_be_direct && self.caller.is_turn_due(to) {
            // A direct access may end at once, so that nothing waits for it. A program that makes only such accesses must
            // hear nevertheless that an owner revokes its memory.
            self.engine.progress();
        }
        self.caller.issue(to, |number| {
            // SAFETY: the caller's promise; the completion is the first field of a request.
            let user = unsafe { Active::new(request.cast()) };
            // SAFETY: the caller's promise.
            unsafe { Operation::new(to, Ask { number, span, wish }, (local, elements), on_device, user) }
        })
    }

    /// Describes `len` bytes of data from a place on. The caller has checked the range of elements.
    fn span(&self, place: Place<'_>, len: u64, elements: Option<&Elements>) -> Result<Span, Error> {
        let Place { key, offset } = place;
        self.check_rank(key.rank())?;
        if elements.is_some() || key.covers(offset, len) {
            return Ok(Span { name: key.name(), offset, len });
        }
        Err(Error::OutsideRegistration { offset, len, registered: key.len() })
    }

    fn word(&self, place: Place<'_>, width: u64) -> Result<Span, Error> {
        let span = self.span(place, width, None)?;
        if place.key.base().wrapping_add(span.offset).is_multiple_of(width) {
            return Ok(span);
        }
        Err(Error::MisalignedWord { offset: span.offset, width })
    }

    fn signal(&self, signal: &Signal<'_>, target: u32) -> Result<SignalAsk, Error> {
        let word = self.word(signal.at, 8)?;
        let owner = signal.at.key.rank();
        if owner != target {
            return Err(Error::ForeignSignal { owner, target });
        }
        let (update, value) = match signal.update {
            SignalUpdate::Set(value) => (Update::Set, value),
            SignalUpdate::Add(value) => (Update::Add, value),
        };
        Ok(SignalAsk { word, update, value })
    }
}
