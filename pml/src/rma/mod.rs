//! One-sided operations: registered memory, put, get, signals, atomic operations.
//!
//! A process registers memory and sends its key to others. These ask for accesses by active messages of their own
//! context, and the owner serves them in whichever call makes progress. Data moves as the data of active messages, so
//! every protocol and transport carries it, from and to host and device memory. Where a link reaches the memory and that
//! costs less, the caller moves the data by itself.
//!
//! - `key`: the remote key. `registry`: the table of registered memory, pure state. `wire`: asks and answers.
//! - `owner`: serves asks. `words`: signals and atomic operations, by the owner's CPU. `registered`: a registration.
//! - `window`: numbers, fences and completion of the operations to a target, pure state.
//! - `operation`, `caller`: operations under way. `watch`: reports targets that die.
//! - `direct`: operations that the caller makes by itself. `exposures`, `reach`: the memory that it reaches so. `grants`,
//!   `exposing`: the same at the owner. `exposure_wire`: their messages. `exposures` and `grants` are pure state.
//!
//! # Order
//! Operations to one target are independent of each other, unless a fence is between them. The signal of a put is given
//! after all its data is there. An operation is complete at the caller only after it is complete at the target.

mod caller;
mod direct;
mod exposing;
mod exposure_wire;
mod exposures;
mod grants;
mod key;
mod kinds;
mod operation;
mod owner;
mod reach;
mod registered;
mod registry;
mod watch;
mod window;
mod wire;
mod words;

use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use cableway_base::Rank;
use cableway_common_cuda::{Devices, MemoryClass};

pub use key::{Place, RemoteKey};
pub use kinds::{AtomicOperation, Signal, SignalUpdate, Width};
use registered::LAST_WAIT;
pub use registered::Registered;

use crate::am::{ActiveMessages, Arrival, INLINE_LIMIT};
use crate::buffer::Buffer;
use crate::core::Active;
use crate::error::Error;
use crate::protocol::Explained;
use crate::protocol::direct::Asked;
use crate::tag::{Engine, Request};
use crate::wire::Malformed;
use caller::Caller;
use exposing::Exposing;
use exposure_wire::{EXPOSE, EXPOSED, RELEASED, REVOKE};
use key::{Described, Owning};
use operation::{Local, Memory, Operation};
use owner::{Owner, disconnect};
use registry::{Region, Span};
use wire::{ANSWER, ASK, Answer, Ask, Change, SignalAsk, Update, Wish};

/// The one-sided operations of one engine. May be used from any thread.
pub struct OneSided {
    active: ActiveMessages,
    exposing: Arc<Exposing>,
    caller: Arc<Caller>,
    engine: Arc<Engine>,
    size: u32,
    me: Rank,
}

impl OneSided {
    /// Prepares one-sided operations between the processes 0 to `size - 1`, of which this one is `me`. `context` carries
    /// nothing else. All processes make this call. They serve each other from then on: a process that has registered no
    /// memory refuses all accesses.
    ///
    /// # Errors
    /// The context is in use.
    pub fn new(engine: &Arc<Engine>, context: u32, size: u32, me: Rank) -> Result<Self, Error> {
        let active = ActiveMessages::new(engine, context, (0..size).collect(), me)?;
        let (owner, caller) = (Arc::<Owner>::default(), Arc::new(Caller::new(active.poster().clone())));
        let serving = owner.clone();
        active.register(ASK, move |arrival| serving.serve(arrival))?;
        listen(&active, ANSWER, &caller, Caller::answer)?;
        let exposing = Arc::new(Exposing::new(owner.clone()));
        let (asked, releasing) = (exposing.clone(), exposing.clone());
        active.register(EXPOSE, move |arrival| asked.expose(arrival))?;
        active.register(RELEASED, move |arrival| releasing.released(arrival))?;
        listen(&active, EXPOSED, &caller, Caller::exposed)?;
        listen(&active, REVOKE, &caller, Caller::revoked)?;
        Ok(OneSided { active, exposing, caller, engine: engine.clone(), size, me })
    }

    /// Registers `len` bytes at `address`, after looking up where they lie. They must lie in one allocation.
    ///
    /// # Safety
    /// Until the registration is dropped, the memory stays allocated, and peers may read and write it at any time. So
    /// this process accesses it only as it would access memory that another thread writes.
    ///
    /// # Errors
    /// The address is null or wraps around, the bytes lie in several allocations, or the engine was finalized.
    pub unsafe fn register(&self, address: *mut u8, len: u64) -> Result<Registered, Error> {
        self.engine.core().check_open()?;
        let devices = self.engine.devices();
        let bad = |reason| Err(Error::BadRegistration { reason });
        let Ok(bytes) = usize::try_from(len) else { return bad("it is larger than the address space") };
        if address.is_null() && len > 0 {
            return bad("its address is null");
        }
        let location = devices.classify(address, bytes);
        if len > 0 && !devices.one_allocation(&location, address, bytes) {
            return bad("it lies in several allocations: register each of them");
        }
        let region = Region { address: address.expose_provenance(), len, location };
        let name = self.exposing.owner.add(region)?;
        let described = Described {
            base: region.address as u64,
            len,
            rank: self.me,
            class: location.class,
            device: owning(devices, &location),
        };
        let (exposing, poster) = (self.exposing.clone(), self.active.poster().clone());
        Ok(Registered::new(exposing, poster, region, RemoteKey::new(&described, name)))
    }

    /// Starts to copy `from`, one run of bytes on the host or a device, to `to`. Then `signal` is given. The request
    /// completes when both are done at the target.
    ///
    /// # Safety
    /// As [`Engine::isend`].
    ///
    /// # Errors
    /// The place is not within the memory, the buffer is not one run of bytes, the signal is misaligned or of another
    /// process, or the target is gone. The request is not active then. Later failures are reported in the request.
    pub unsafe fn put(
        &self,
        from: Buffer<'_>,
        to: Place<'_>,
        signal: Option<Signal<'_>>,
        request: *const Request,
    ) -> Result<(), Error> {
        let memory = contiguous(from)?;
        let span = self.span(to, memory.len)?;
        let signal = signal.map(|signal| self.signal(&signal, to.key.rank())).transpose()?;
        // SAFETY: the caller's promise.
        unsafe { self.start(to.key, span, Wish::Put(signal), Local::Put(memory), request) }
    }

    /// Starts to copy from `from` to `into`, one run of bytes on the host or a device. Fills the buffer.
    ///
    /// # Safety
    /// As [`Engine::irecv`].
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub unsafe fn get(&self, into: Buffer<'_>, from: Place<'_>, request: *const Request) -> Result<(), Error> {
        let memory = contiguous(into)?;
        let span = self.span(from, memory.len)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(from.key, span, Wish::Get, Local::Get(memory), request) }
    }

    /// Starts an atomic operation on the word at `at`, and stores the word before it in `old`. The target's CPU makes it.
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
    ) -> Result<(), Error> {
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
        let (wish, local) = (Wish::Atomic(Change { update, value, compare }), Local::Atomic(old.expose_provenance()));
        // SAFETY: the caller's promise.
        unsafe { self.start(at.key, span, wish, local, request) }
    }

    /// Orders operations that start after this call after all earlier ones to `target`, or to every target. Does not
    /// wait: later operations start once the earlier ones are complete.
    pub fn fence(&self, target: Option<Rank>) {
        if !self.engine.is_forked() {
            self.caller.fence(target);
        }
    }

    /// Waits until all operations that this process has started to `target`, or to any target, are complete. Their
    /// requests hold their errors.
    pub fn flush(&self, target: Option<Rank>) {
        if !self.engine.is_forked() {
            self.caller.flush(target);
        }
    }

    /// Waits until `over` returns true for the word of 8 bytes at `offset`, which process `from` changes. Returns the
    /// word. Makes progress meanwhile.
    ///
    /// # Errors
    /// As [`Registered::load`], or `from` is gone and `over` returns false.
    pub fn wait_for_word(
        &self,
        memory: &Registered,
        offset: u64,
        from: Rank,
        mut over: impl FnMut(u64) -> bool,
    ) -> Result<u64, Error> {
        self.engine.core().check_open()?;
        self.check_rank(from)?;
        let mut word = memory.load(offset);
        self.engine.wait_until(|| {
            // What arrived before the process ended counts, so its end is looked for first.
            let gone = self.caller.check(from);
            word = memory.load(offset);
            match (&word, gone) {
                (Ok(value), _) if over(*value) => true,
                (Ok(_), Err(error)) => {
                    word = Err(error);
                    true
                }
                (Ok(_), Ok(())) => false,
                (Err(_), _) => true,
            }
        });
        if self.engine.is_forked() { Err(Error::Forked) } else { word }
    }

    /// Explains which way puts (`store`) or gets of `sizes` take between memory of class `local` here and of class `remote`
    /// at process `target`: by the links, or by the owner. It assumes that the owner has exposed its memory.
    ///
    /// # Errors
    /// There is no such process, or it cannot be reached.
    pub fn explain(
        &self,
        target: Rank,
        store: bool,
        [local, remote]: [MemoryClass; 2],
        sizes: RangeInclusive<u64>,
    ) -> Result<Vec<Explained>, Error> {
        self.check_rank(target)?;
        let asked = Asked { store, local, remote, inline_limit: INLINE_LIMIT as u64 };
        self.engine.explain_access(target, asked, sizes)
    }

    /// Returns the number of messages that wait in this process: asks, answers, and data under way.
    pub fn pending(&self) -> usize {
        self.active.poster().pending()
    }

    /// Ends one-sided operations. Those under way fail, and peers' later ones are not served. Waits until this process
    /// and its peers access each other's memory directly no more, so it may wait for the peers' progress.
    pub fn close(&self) {
        if !self.engine.is_forked() {
            let poster = self.active.poster();
            let end = Instant::now() + LAST_WAIT;
            self.engine.wait_until(|| {
                let over = self.caller.stop_reaching() & self.exposing.stop_exposing(poster);
                over || (std::thread::panicking() && Instant::now() > end)
            });
        }
        self.active.close();
    }

    /// # Safety
    /// As [`put`](Self::put), [`get`](Self::get) or [`atomic`](Self::atomic).
    unsafe fn start(
        &self,
        key: &RemoteKey,
        span: Span,
        wish: Wish,
        local: Local,
        request: *const Request,
    ) -> Result<(), Error> {
        self.engine.core().check_open()?;
        let Some(request) = NonNull::new(request.cast_mut()) else {
            return Err(Error::BadRequest { reason: "it is null" });
        };
        let to = key.rank();
        let on_device = matches!(key.class(), Some(MemoryClass::Device | MemoryClass::Managed));
        if !matches!(local, Local::Atomic(_)) && (on_device || span.len > INLINE_LIMIT as u64) {
            // A direct access may end at once, so that nothing waits for it. A program that makes only such accesses must
            // hear nevertheless that an owner revokes its memory.
            self.engine.progress();
        }
        self.caller.issue(to, |number| {
            // SAFETY: the caller's promise; the completion is the first field of a request.
            let user = unsafe { Active::new(request.cast()) };
            // SAFETY: the caller's promise.
            unsafe { Operation::new(to, Ask { number, span, wish }, local, on_device, user) }
        })
    }

    fn check_rank(&self, rank: Rank) -> Result<(), Error> {
        if rank < self.size {
            return Ok(());
        }
        Err(Error::NoSuchRank { rank: i32::try_from(rank).unwrap_or(i32::MAX), size: self.size as usize })
    }

    fn span(&self, place: Place<'_>, len: u64) -> Result<Span, Error> {
        let Place { key, offset } = place;
        self.check_rank(key.rank())?;
        if key.covers(offset, len) {
            return Ok(Span { name: key.name(), offset, len });
        }
        Err(Error::OutsideRegistration { offset, len, registered: key.len() })
    }

    fn word(&self, place: Place<'_>, width: u64) -> Result<Span, Error> {
        let span = self.span(place, width)?;
        if place.key.base().wrapping_add(span.offset).is_multiple_of(width) {
            return Ok(span);
        }
        Err(Error::MisalignedWord { offset: span.offset, width })
    }

    fn signal(&self, signal: &Signal<'_>, target: Rank) -> Result<SignalAsk, Error> {
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

/// Has the caller's side handle messages with this id.
fn listen(
    active: &ActiveMessages,
    id: u32,
    caller: &Arc<Caller>,
    handle: fn(&Arc<Caller>, Arrival<'_>) -> Result<(), Malformed>,
) -> Result<(), Error> {
    // The engine keeps the handlers, so they must not keep the engine.
    let caller = Arc::downgrade(caller);
    active.register(id, move |arrival| {
        let (source, poster) = (arrival.source(), arrival.poster());
        if let Some(Err(malformed)) = caller.upgrade().map(|caller| handle(&caller, arrival)) {
            disconnect(poster.engine(), source, &malformed);
        }
    })
}

/// Returns the device that owns the memory, for people to read.
fn owning(devices: &Devices, location: &cableway_common_cuda::Location) -> Option<Owning> {
    let device = location.device.filter(|_| location.class != MemoryClass::Pinned)?;
    Some(Owning { vendor: devices.vendor(device)?, uuid: devices.uuid(device).ok()? })
}

fn contiguous(buffer: Buffer<'_>) -> Result<Memory, Error> {
    buffer.packed_len()?;
    let (address, len) = buffer.contiguous().ok_or(Error::NotContiguous)?;
    Ok(Memory { address: address.expose_provenance(), len })
}

/// Parses an ask and an answer, and writes them again. For fuzzers.
pub(crate) fn recode(bytes: &[u8]) {
    if let Ok(ask) = Ask::parse(bytes) {
        assert_eq!(&ask.to_bytes()[..], bytes);
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(&answer.to_bytes()[..], bytes);
    }
    exposure_wire::recode(bytes);
}
