//! One-sided operations: registered memory, put, get, signals, atomic operations.
//!
//! A process registers memory and sends its key to others. These ask for accesses by active messages of their own
//! context, and the owner serves them in whichever call makes progress. Data moves as the data of active messages, so
//! every protocol and transport carries it, from and to host and device memory. Where a link reaches the memory and that
//! costs less, the caller moves the data by itself.
//!
//! - `key`: the remote key. `registry`: the table of registered memory, pure state. `wire`: asks and answers.
//! - `target`: what a put or get reaches. `authenticators`: the secrets of keys. `owner`: serves asks. `words`: signals and atomic operations, by the owner's CPU. `registered`: a registration. `ranges`: where registered memory
//!   lies, by its addresses.
//! - `window`: numbers, fences and completion of the operations to a target, pure state.
//! - `calls`: the calls that start operations. `operation`, `local`, `caller`: operations under way. `watch`: reports targets that
//!   die.
//! - `direct`: operations that the caller makes by itself. `exposures`, `reach`: the memory that it reaches so. `grants`,
//!   `exposing`: the same at the owner. `exposure_wire`: their messages. `exposures` and `grants` are pure
//!   state. `gates`, `mapped`, `scattered`: operations that are loads and stores. `by_streams`, `passing`: puts that streams make.
//!
//! # Order
//! Operations to one target are independent of each other, unless a fence is between them. A signal is given after all
//! data of its put is there, or after all data of its get was read. An operation is complete at the caller only after it is complete at the target.

mod authenticators;
mod by_streams;
mod caller;
mod calls;
mod direct;
mod exposing;
mod exposure_wire;
mod exposures;
mod gates;
mod grants;
mod key;
mod kinds;
mod local;
mod mapped;
mod operation;
mod owner;
mod passing;
mod ranges;
mod reach;
mod registered;
mod registry;
mod scattered;
mod target;
mod watch;
mod window;
mod wire;
mod words;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use cableway_base::Rank;
use cableway_common_cuda::MemoryClass;

pub(crate) use by_streams::{Exposable, StreamPut};
pub use key::{Place, RemoteKey};
pub use kinds::{AtomicOperation, Signal, SignalUpdate, Width};
pub(crate) use passing::{DeviceMemory, Passing};
use registered::LAST_WAIT;
pub use registered::{Registered, RegisteredWord};

use crate::am::{ActiveMessages, Arrival, INLINE_LIMIT};
use crate::error::Error;
use crate::protocol::Explained;
use crate::protocol::direct::Asked;
use crate::shapes::Elements;
use crate::tag::Engine;
use crate::wire::Malformed;
use caller::Caller;
use exposing::Exposing;
use exposure_wire::{EXPOSE, EXPOSED, RELEASED, REVOKE};
use key::{Described, owning};
use owner::{Owner, disconnect};
use ranges::Known;
use registry::Region;
pub use target::Target;
use wire::{ANSWER, ASK, Answer, Ask, SHAPE};

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
        let gathering = owner.clone();
        active.register(SHAPE, move |arrival| gathering.gather(&arrival))?;
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
        let allocation = devices.allocation_at(&location);
        // Of page-locked memory it matters that it is.
        let in_host = (location.class == MemoryClass::Host).then_some(Known::Host);
        let known = allocation.map(Known::Device).or(in_host);
        let name = self.exposing.owner.add(region, known)?;
        let described = Described {
            base: region.address as u64,
            len,
            rank: self.me,
            class: location.class,
            device: owning(devices, &location),
            mappable: len > 0 && !location.on_device() && self.engine.is_mappable(address, bytes),
        };
        let (exposing, poster) = (self.exposing.clone(), self.active.poster().clone());
        Ok(Registered::new(exposing, poster, region, RemoteKey::new(&described, name)))
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

    fn check_rank(&self, rank: Rank) -> Result<(), Error> {
        if rank < self.size {
            return Ok(());
        }
        Err(Error::NoSuchRank { rank: i32::try_from(rank).unwrap_or(i32::MAX), size: self.size as usize })
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

/// Parses an ask and an answer, and writes them again. For fuzzers.
pub(crate) fn recode(bytes: &[u8]) {
    match Ask::parse(bytes) {
        Ok((ask, None)) => assert_eq!(&ask.to_bytes()[..], bytes),
        Ok((ask, Some((form, blocks)))) => {
            assert_eq!(ask.to_bytes_with(form, &blocks), bytes);
            // The owner checks what it rebuilds.
            if let Some(elements) = Elements::of_blocks(&blocks, form.count, form.extent)
                && let Ok(range) = target::range(&ask.span, &elements)
            {
                assert!(range.len > 0 && (range.len >= elements.len() || form.count > 1 || form.blocks > 1));
            }
        }
        Err(_) => {}
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(&answer.to_bytes()[..], bytes);
    }
    exposure_wire::recode(bytes);
}
