//! Windows: memory that the processes of a communicator expose to each other's one-sided operations, as MPI has them.
//!
//! A [`Window`] lies over active messages on a communicator of its own. Each process exposes host or device memory, or
//! none. An origin asks, and the target serves in whichever call makes progress. Data moves as the data of active
//! messages, so every protocol and transport carries it, between host and device memory. Puts and gets move it straight
//! from and to the window. The target makes the accumulates of its window, on the device where a kernel can.
//!
//! - `wire`: asks, answers and notices. `exposure`: the memory, and the check of every range.
//! - `target`: serves asks, and `reply` answers them. `accumulates`: their order, and what they do to the memory.
//! - `origin`: operations under way, and their completion.
//! - `epochs`, `sync`, `locks`: synchronization, pure state. `synchronize`: the calls.
//! - `host`: what the host of the engine does.
//!
//! # Order
//! Accumulates of one origin on one target are made in the order of the calls. Other operations are independent of each
//! other until a flush, or the end of their epoch. What is complete is complete at the target.

mod accumulates;
mod epochs;
mod exposure;
mod host;
mod locks;
mod origin;
mod reply;
mod sync;
mod synchronize;
mod target;
mod wire;

use std::sync::Arc;

use parking_lot::Mutex;

pub use exposure::Exposed;
pub use host::{Host, KernelReduction};
pub use origin::Then;
pub use wire::Combine;

use crate::am::{ActiveMessages, Arrival};
use crate::buffer::Buffer;
use crate::core::{self, Done};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::shapes::{Block, Described, Elements};
use crate::tag::{Communicator, Engine};
use crate::wire::Malformed;
use accumulates::WIDEST;
use epochs::Epochs;
use exposure::Exposure;
use origin::{Data, Operation, Origin};
use sync::Sync;
use target::Target;
use wire::{ANSWER, ASK, Ask, NOTICE, Notice, Reach, SHAPE, Wish};

/// What an access does. Lengths are those of the data, so they are equal at both ends.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The origin's data goes to the target.
    Put(Buffer<'a>),
    /// The target's data comes to the result.
    Get(Buffer<'a>),
    /// The origin's data is combined with the target's elements.
    Accumulate(Buffer<'a>, Combine),
    /// The same, and the elements before come to the result. With [`Combine::Keep`] the origin's data is ignored.
    GetAccumulate {
        /// The data.
        data: Buffer<'a>,
        /// How elements are combined.
        combine: Combine,
        /// Where the elements go.
        result: Buffer<'a>,
    },
    /// One element of at most 16 bytes becomes `new` if its bytes equal `expected`. What it was comes to the result.
    CompareSwap {
        /// What the element must be. One run of bytes.
        expected: Buffer<'a>,
        /// What it becomes then. One run of bytes.
        new: Buffer<'a>,
        /// Where the element before goes.
        result: Buffer<'a>,
    },
}

/// An operation on a target's memory.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// The rank in the communicator.
    pub target: u32,
    /// Where the memory begins, in the target's units.
    pub displacement: i64,
    /// The bytes from there: the buffer's address counts as an offset.
    pub reach: Buffer<'a>,
    /// What happens.
    pub change: Change<'a>,
}

/// A window of one process. May be used from any thread.
pub struct Window {
    active: ActiveMessages,
    engine: Arc<Engine>,
    communicator: Arc<Communicator>,
    host: Arc<dyn Host>,
    target: Arc<Target>,
    origin: Arc<Origin>,
    epochs: Mutex<Epochs>,
    sync: Arc<Mutex<Sync>>,
}

impl Window {
    /// Creates a window of the members of a communicator, all of which make this call. Other messages on it have tags
    /// below 0 only.
    ///
    /// # Safety
    /// Until [`close`](Self::close) the exposed memory stays allocated, and peers may read and write it at any time.
    ///
    /// # Errors
    /// This process is a forked child.
    pub unsafe fn new(
        engine: &Arc<Engine>,
        communicator: Arc<Communicator>,
        exposed: Exposed,
        host: Arc<dyn Host>,
    ) -> Result<Self, Error> {
        let size = communicator.group().len() as u32;
        let active = ActiveMessages::over(engine, communicator.clone());
        let target = Arc::new(Target::new(Exposure::new(exposed), host.clone()));
        let origin = Arc::new(Origin::new(size));
        let sync = Arc::new(Mutex::new(Sync::new(size)));
        // The engine keeps the handlers, so they must not keep the engine.
        let notices = sync.clone();
        handle(&active, NOTICE, move |arrival| note(&notices, arrival))?;
        let shapes = target.clone();
        handle(&active, SHAPE, move |arrival| shapes.shapes.arrive(&arrival))?;
        let answers = origin.clone();
        handle(&active, ANSWER, move |arrival| answers.answer(arrival))?;
        let asks = target.clone();
        handle(&active, ASK, move |arrival| asks.serve(arrival))?;
        let epochs = Mutex::default();
        Ok(Window { active, engine: engine.clone(), communicator, host, target, origin, epochs, sync })
    }

    /// Starts an operation. It completes with a flush or the end of the epoch. If there is a `then`, it gets the
    /// operation's error, and is called once the operation is complete, perhaps in this call.
    ///
    /// # Safety
    /// The origin's data stays valid and unwritten until the operation is complete, and the result valid and exclusive to
    /// it.
    ///
    /// # Errors
    /// No epoch reaches the target, the buffers hold different amounts of data, or the target is gone. Nothing was
    /// started, and `then` is dropped.
    pub unsafe fn start(&self, access: &Access<'_>, then: Option<Then>) -> Result<(), Error> {
        self.engine.core().check_open()?;
        self.epochs.lock().access(access.target)?;
        let size = self.communicator.group().len();
        if access.target as usize >= size {
            return Err(Error::NoSuchRank { rank: i32::try_from(access.target).unwrap_or(i32::MAX), size });
        }
        let len = access.reach.packed_len()?;
        // SAFETY: the caller's promise.
        let (wish, data, result) = unsafe { self.parts(&access.change, len)? };
        if len == 0 {
            if let Some(then) = then {
                then(Ok(()));
            }
            return Ok(());
        }
        let (reach, blocks) = describe(access, len)?;
        let ask = Ask { number: 0, displacement: access.displacement, wish, reach };
        let operation = Operation { target: access.target, ask, blocks, len, data, result, then };
        // SAFETY: the caller's promise.
        unsafe { self.origin.start(self.active.poster(), operation) }
    }

    /// Returns what an ask of `len` bytes says and brings, and where its answer goes.
    ///
    /// # Safety
    /// The buffers of a comparison are valid for reads.
    unsafe fn parts<'a>(&self, change: &Change<'a>, len: u64) -> Result<(Wish, Data<'a>, Option<Buffer<'a>>), Error> {
        let equal = |buffer: &Buffer<'_>| match buffer.packed_len()? {
            origin if origin == len => Ok(()),
            origin => Err(Error::UnequalBuffers { origin, target: len }),
        };
        let data_of = |data: Buffer<'a>, combine| match combine {
            Combine::Keep => Ok(Data::Buffer(Buffer::EMPTY)),
            _ => equal(&data).map(|()| Data::Buffer(data)),
        };
        Ok(match *change {
            Change::Put(data) => (Wish::Put, data_of(data, Combine::Replace)?, None),
            Change::Get(result) => {
                equal(&result)?;
                (Wish::Get, Data::Buffer(Buffer::EMPTY), Some(result))
            }
            Change::Accumulate(data, combine) => {
                (Wish::Accumulate { combine, fetch: false }, data_of(data, combine)?, None)
            }
            Change::GetAccumulate { data, combine, result } => {
                equal(&result)?;
                (Wish::Accumulate { combine, fetch: true }, data_of(data, combine)?, Some(result))
            }
            Change::CompareSwap { expected, new, result } => {
                [expected, new, result].iter().try_for_each(equal)?;
                if len > WIDEST {
                    return Err(Error::UnequalBuffers { origin: WIDEST, target: len });
                }
                let mut bytes = vec![0; 2 * len as usize];
                for (half, from) in bytes.chunks_exact_mut(len.max(1) as usize).zip([expected, new]) {
                    let devices = self.engine.devices();
                    // SAFETY: the caller's promise; the convertor ends here.
                    let mut convertor = unsafe { from.convertor_to_send(from.classify(devices), devices) };
                    convertor.pack_slice(half).map_err(|error| Error::of_copy(error, &convertor))?;
                }
                (Wish::CompareSwap, Data::Owned(bytes), Some(result))
            }
        })
    }

    /// Attaches memory to a window of attached memory. No other process takes part.
    ///
    /// # Safety
    /// As [`new`](Self::new), until the memory is detached.
    ///
    /// # Errors
    /// It overlaps other attached memory, or the window exposes one range only.
    pub unsafe fn attach(&self, address: *mut u8, len: u64) -> Result<(), Error> {
        self.target.exposure.attach(address, len)
    }

    /// Detaches the memory that was attached at an address.
    ///
    /// # Errors
    /// There is none.
    pub fn detach(&self, address: *const u8) -> Result<(), Error> {
        self.target.exposure.detach(address)
    }

    /// Ends the window. All members have synchronized since the last operation.
    pub fn close(&self) {
        let poster = self.active.poster();
        self.host.wait_until(&self.engine, &mut || {
            (self.target.is_idle() && poster.pending() == 0) || self.check().is_err()
        });
        self.active.close();
        if !self.engine.is_forked() {
            self.target.finish();
        }
    }

    /// Checks that no member has died.
    fn check(&self) -> Result<(), Error> {
        self.engine.check_members(&self.communicator)
    }
}

/// Registers a handler. What is malformed disconnects its sender.
fn handle(
    active: &ActiveMessages,
    id: u32,
    handler: impl Fn(Arrival<'_>) -> Result<(), Malformed> + Send + std::marker::Sync + 'static,
) -> Result<(), Error> {
    active.register(id, move |arrival| {
        let (source, poster) = (arrival.source(), arrival.poster());
        if let Err(malformed) = handler(arrival)
            && let Some(&process) = poster.communicator().group().get(source as usize)
            && let Some(slot) = poster.engine().known(process)
        {
            let mut done = Done::default();
            core::disconnect(&**poster.engine(), slot, &malformed, &mut done);
            done.run();
        }
    })
}

/// Handles a notice.
fn note(sync: &Mutex<Sync>, arrival: Arrival<'_>) -> Result<(), Malformed> {
    let notice = Notice::parse(arrival.header())?;
    let sends = sync.lock().handle(arrival.source(), notice);
    for send in sends.ok_or(Malformed::OneSided("a notice of a window that is out of turn"))? {
        // The receiver is gone if this fails, and its calls have failed, too.
        if let Err(error) = synchronize::send(arrival.poster(), send.to, send.notice) {
            log::debug!("a notice of a window is lost with rank {}: {error}", send.to);
        }
    }
    Ok(())
}

/// Describes the target's bytes.
fn describe(access: &Access<'_>, len: u64) -> Result<(Reach, Vec<Block>), Error> {
    let &Access { target: rank, displacement, reach, .. } = access;
    let from = reach.address().addr() as i64;
    let Some(layout) = reach.layout() else { return Ok((Reach::Run { offset: from, len: reach.count() }, Vec::new())) };
    if let Some((offset, len)) = layout.contiguous_span(reach.count()) {
        return Ok((Reach::Run { offset: from.wrapping_add(offset), len }, Vec::new()));
    }
    // Elements beyond 64 bits are in no window.
    let outside = || Error::RefusedByWindow { rank, displacement, len, refusal: Refusal::OutOfRange };
    let elements = Elements::new(layout.clone(), reach.count()).ok_or_else(outside)?;
    let Described { blocks, count, extent } = elements.describe(from)?;
    Ok((Reach::Elements { blocks: blocks.len() as u32, count, extent }, blocks))
}

/// Parses all headers, and writes them again. For fuzzers.
pub(crate) fn recode(bytes: &[u8]) {
    wire::recode(bytes);
}
