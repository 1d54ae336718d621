//! The context of the protocols' calls, and the steps that the core runs for them later.

use cableway_base::Rank;
use cableway_btl::{Fragment, Received, Region, Retained, SharedBytes};
use cableway_common_cuda::{BounceBuffer, Completion, DeviceError, Direction, Location};

use super::host_costs::Kept;
use super::scratch::Scratches;
use super::unexpected::UnexpectedMessage;
use crate::core::{self, Active, Copies, Core, Done, Peer, Plain};
use crate::error::Error;
use crate::status::Status;
use crate::wire::Id;

pub(crate) type Links = core::Links<Operation>;

/// State that the protocols of an engine share beside its core.
pub(crate) struct Shared {
    pub(crate) copies: Copies<AfterCopy>,
    pub(crate) scratch: Scratches,
    pub(crate) kept: Kept,
}

/// A call on behalf of one peer. The caller holds the peer's channel.
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
    /// A fragment, with its length in bytes.
    SendFragment(Id, u64),
    /// A piece of a message.
    Get { id: Id, offset: u64, len: u64 },
    /// A piece of the job with this index.
    Put(usize),
    /// A PUT of a whole message, with its length in bytes and the receiver's transfer.
    PutWhole { id: Id, receiver: Id, len: u64 },
    /// A piece of the direct job with this index.
    Direct(usize),
}

/// The step after a device copy.
pub(crate) enum AfterCopy {
    /// Continue a transfer with this peer.
    Transfer { peer: Rank, id: Id, step: Step },
    /// Complete an eager message.
    Received { request: Active, status: Status, truncated: Option<Error>, address: usize, source: Source },
}

/// The next step of a transfer.
pub(crate) enum Step {
    /// Send an eager message.
    SendMessage { link: u32, fragment: Fragment, len: usize },
    /// Send a fragment.
    SendFragment { link: u32, fragment: Fragment, len: usize },
    /// Announce a message: the default stream's work on its data is done.
    Announce,
    /// Move data: the default stream's work on the buffer is done.
    Move,
    /// Count bytes of an announced message that reached the user's buffer.
    Arrived { bytes: u64, source: Source },
    /// Count bytes that were unpacked from this lane.
    Unpacked { lane: usize, bytes: u64 },
}

impl Context<'_> {
    /// Returns the step of a transfer with the peer as the step after a copy.
    pub(crate) fn then(&self, id: Id, step: Step) -> AfterCopy {
        AfterCopy::Transfer { peer: self.peer.rank, id, step }
    }
}

/// Keeps the host memory alive that a copy reads.
pub(crate) enum Source {
    /// Memory of the transport.
    Retained { _message: Retained },
    /// A bounce buffer, registered with the device's driver.
    Bounce { _buffer: BounceBuffer },
    /// An unexpected message.
    Unexpected { _message: Box<UnexpectedMessage> },
}

impl Source {
    /// Returns whether the memory is page-locked. Transports only let page-locked memory be retained.
    fn page_locked(&self) -> bool {
        !matches!(self, Source::Unexpected { .. })
    }
}

/// Bytes that stay in place while `source` lives.
pub(crate) struct Held {
    pub(crate) address: *const u8,
    pub(crate) source: Source,
}

/// Keeps a message's payload beyond its upcall for a device to copy from: in the transport's memory if possible,
/// otherwise in a bounce buffer. Returns `None` if no such memory is free or the message has no payload. The caller
/// then copies at once.
pub(crate) fn hold(core: &Core, message: &Received<'_>, header_len: usize) -> Option<Held> {
    let payload = message.bytes().skip(header_len);
    if payload.is_empty() {
        return None;
    }
    if let Some(message) = message.retain() {
        let address = message.bytes().skip(header_len).as_ptr();
        return Some(Held { address, source: Source::Retained { _message: message } });
    }
    in_bounce_buffer(core, payload)
}

/// Keeps an unexpected message for a device to copy from: its payload in a bounce buffer if one is free, otherwise where
/// it is.
pub(crate) fn hold_unexpected(core: &Core, message: UnexpectedMessage) -> Held {
    in_bounce_buffer(core, SharedBytes::from_private(&message.payload)).unwrap_or_else(|| {
        // Boxed, because it must not move while the device copies from it.
        let message = Box::new(message);
        Held { address: message.payload.as_ptr(), source: Source::Unexpected { _message: message } }
    })
}

fn in_bounce_buffer(core: &Core, payload: SharedBytes<'_>) -> Option<Held> {
    let mut buffer = core.bounce_buffer(payload.len())?;
    payload.copy_to(&mut buffer);
    Some(Held { address: buffer.as_mut_ptr(), source: Source::Bounce { _buffer: buffer } })
}

impl Shared {
    /// Has a device copy `from` to a fragment, batched with other copies.
    ///
    /// # Safety
    /// Both ranges stay allocated, the source unwritten and the destination untouched, until `then` runs or is dropped.
    pub(crate) unsafe fn gather_out(&self, core: &Core, from: Region, to: *mut u8, page_locked: bool, then: AfterCopy) {
        let Region { address: from, len, location: at, order } = from;
        let copy = Plain { to, from, len, direction: Direction::DeviceToHost, at, order, page_locked, then };
        // SAFETY: the caller's promise.
        unsafe { self.copies.gather(core, copy) };
    }

    /// Has a device copy held bytes to `to`, batched with other copies. `then` receives their source.
    ///
    /// # Safety
    /// The destination stays allocated and untouched until `then` runs or is dropped.
    pub(crate) unsafe fn gather_in(&self, core: &Core, held: Held, to: Region, then: impl FnOnce(Source) -> AfterCopy) {
        let Region { address: to, len, location: at, order } = to;
        let Held { address: from, source } = held;
        let (direction, page_locked) = (Direction::HostToDevice, source.page_locked());
        let copy = Plain { to, from, len, direction, at, order, page_locked, then: then(source) };
        // SAFETY: the source keeps the bytes readable. The caller promises the rest.
        unsafe { self.copies.gather(core, copy) };
    }
}

/// Starts a wait for the default stream's work on a buffer. Returns `None` if the work is done already.
pub(crate) fn default_stream(core: &Core, at: &Location) -> Result<Option<Completion>, DeviceError> {
    let mut completion = core.devices.default_stream(at)?;
    Ok(if completion.poll()? { None } else { Some(completion) })
}
