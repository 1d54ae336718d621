//! What every protocol works with, and what it leaves with the core for later.

use cableway_base::Rank;
use cableway_btl::{Fragment, Received, Region, Retained};
use cableway_common_cuda::{BounceBuffer, BouncePool, Completion, DeviceError, Direction, Location};

use super::scratch::Scratches;
use super::unexpected::UnexpectedMessage;
use crate::core::{self, Active, Copies, Core, Done, Peer, Plain};
use crate::error::Error;
use crate::status::Status;
use crate::wire::Id;

pub(crate) type Links = core::Links<Operation>;

/// What the protocols of an engine share beside its core.
pub(crate) struct Shared {
    pub(crate) copies: Copies<AfterCopy>,
    pub(crate) scratch: Scratches,
}

/// A call on behalf of one peer, whose channel the caller holds.
pub(crate) struct Context<'c> {
    pub(crate) core: &'c Core,
    pub(crate) shared: &'c Shared,
    pub(crate) peer: &'c Peer,
    pub(crate) done: &'c mut Done,
}

/// A `put`, `get` or `send_in_place` under way.
pub(crate) enum Operation {
    /// An eager message of this transfer.
    SendMessage(Id),
    /// A fragment of so many bytes.
    SendFragment(Id, u64),
    /// A piece of a message.
    Get { id: Id, offset: u64, len: u64 },
    /// A piece of the job with this index.
    Put(usize),
    /// All of a message of so many bytes, for this transfer of the receiver's.
    PutWhole { id: Id, receiver: Id, len: u64 },
}

/// What follows a device's copy.
pub(crate) enum AfterCopy {
    /// An eager message leaves.
    SendMessage { peer: Rank, link: u32, id: Id, fragment: Fragment, len: usize },
    /// A fragment leaves.
    SendFragment { peer: Rank, link: u32, id: Id, fragment: Fragment, len: usize },
    /// A message is announced: the default stream's work on its data is done.
    Announce { peer: Rank, id: Id },
    /// Data is moved: the default stream's work on the buffer is done.
    Move { peer: Rank, id: Id },
    /// So many bytes of an announced message are where they belong.
    Arrived { peer: Rank, id: Id, bytes: u64, source: Source },
    /// So many bytes of a message that comes in pieces are unpacked, out of this lane.
    Unpacked { peer: Rank, id: Id, lane: usize, bytes: u64 },
    /// An eager message is where it belongs.
    Received { request: Active, status: Status, truncated: Option<Error>, address: usize, source: Source },
}

/// Keeps the host memory that a copy reads.
pub(crate) enum Source {
    /// The transport's.
    Retained { _message: Retained },
    /// Our own, registered with the device's driver.
    Bounce { _buffer: BounceBuffer },
    /// A message that was kept.
    Unexpected { _message: Box<UnexpectedMessage> },
}

impl Source {
    /// Whether it is page-locked: transports let nothing else be retained.
    fn page_locked(&self) -> bool {
        !matches!(self, Source::Unexpected { .. })
    }
}

/// Bytes that stay where they are as long as `source` lives.
pub(crate) struct Held {
    pub(crate) address: *const u8,
    pub(crate) source: Source,
}

/// A message's payload, kept beyond its upcall for a device to copy from: in the transport's memory if that can wait, else
/// in a bounce buffer. None if there is no such memory now, or no payload: what there is must be copied at once.
pub(crate) fn hold(core: &Core, message: &Received<'_>, header_len: usize) -> Option<Held> {
    let payload = message.bytes().skip(header_len);
    if payload.is_empty() {
        return None;
    }
    if let Some(message) = message.retain() {
        let address = message.bytes().skip(header_len).as_ptr();
        return Some(Held { address, source: Source::Retained { _message: message } });
    }
    let fits = |pool: &&BouncePool| payload.len() <= pool.chunk_size();
    let mut buffer = [&core.small_bounce, &core.bounce].into_iter().filter(fits).find_map(BouncePool::take)?;
    payload.copy_to(&mut buffer);
    Some(Held { address: buffer.as_mut_ptr(), source: Source::Bounce { _buffer: buffer } })
}

impl Shared {
    /// Has a device copy `from` to a fragment, with other copies.
    ///
    /// # Safety
    /// Both ranges stay allocated, the source unwritten and the destination untouched, until `then` happens or is dropped.
    pub(crate) unsafe fn gather_out(&self, core: &Core, from: Region, to: *mut u8, page_locked: bool, then: AfterCopy) {
        let Region { address: from, len, location: at, order } = from;
        let copy = Plain { to, from, len, direction: Direction::DeviceToHost, at, order, page_locked, then };
        // SAFETY: the caller's promise.
        unsafe { self.copies.gather(core, copy) };
    }

    /// Has a device copy held bytes to `to`, with other copies; `then` gets what keeps them.
    ///
    /// # Safety
    /// The destination stays allocated and untouched until `then` happens or is dropped.
    pub(crate) unsafe fn gather_in(&self, core: &Core, held: Held, to: Region, then: impl FnOnce(Source) -> AfterCopy) {
        let Region { address: to, len, location: at, order } = to;
        let Held { address: from, source } = held;
        let (direction, page_locked) = (Direction::HostToDevice, source.page_locked());
        let copy = Plain { to, from, len, direction, at, order, page_locked, then: then(source) };
        // SAFETY: the source keeps the bytes readable; the rest is the caller's promise.
        unsafe { self.copies.gather(core, copy) };
    }
}

/// A wait for the default stream's work on a buffer; none if it is done already.
pub(crate) fn default_stream(core: &Core, at: &Location) -> Result<Option<Completion>, DeviceError> {
    let mut completion = core.devices.default_stream(at)?;
    Ok(if completion.poll()? { None } else { Some(completion) })
}
