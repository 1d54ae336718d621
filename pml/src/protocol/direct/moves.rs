//! Moves the pieces of direct jobs.

use cableway_btl::{Error as BtlError, Local, Region, Remote, Transfer};
use cableway_common_cuda::{MemoryClass, Strided};

use super::state::DirectJob;
use crate::core::Active;
use crate::error::Error;
use crate::protocol::context::{Context, Links, Operation};
use crate::protocol::transfer::{Channel, State};
use crate::status::Status;
use crate::wire::Exposed;

/// A move to start.
pub(crate) struct Move {
    /// Whether the peer's memory is written.
    pub(crate) store: bool,
    /// The memory of this process that holds the bytes.
    pub(crate) local: Region,
    /// The peer's memory, and the link that reaches it.
    pub(crate) remote: Exposed,
    /// Whether the peer's memory is on a device.
    pub(crate) remote_on_device: bool,
    /// The offset of the bytes in it.
    pub(crate) offset: u64,
    /// The places of the bytes in both memories, relative to their first byte, unless they are runs.
    pub(crate) blocks: Option<[Strided; 2]>,
    /// The bytes to move.
    pub(crate) len: u64,
}

/// Starts to move bytes. The request completes once no byte moves any more. If its error is
/// [`BtlError::Unavailable`], another path can move them all; some may have moved.
///
/// # Safety
/// The local memory stays valid and free of conflicting accesses until the request completes. The peer allows the
/// access until then.
pub(crate) unsafe fn start(cx: &mut Context<'_>, channel: &mut Channel, what: Move, request: Active) {
    let Move { store, local, remote, remote_on_device, offset, blocks, len } = what;
    let on_device = remote_on_device || local.location.on_device();
    let (len, next, outstanding, error) = (len as usize, 0, 0, None);
    let job = DirectJob { store, local, remote, on_device, offset, blocks, len, next, outstanding, error, request };
    let queues = &mut channel.state.queues;
    queues.direct.push_back(queues.direct_jobs.insert(job));
    if cx.peer.gone().is_some() {
        return abandon(cx, channel);
    }
    advance(cx, channel);
}

/// Continues queued jobs. Returns how many pieces the links took.
pub(crate) fn advance(cx: &mut Context<'_>, channel: &mut Channel) -> usize {
    let mut pieces = 0;
    while let Some(&index) = channel.state.queues.direct.front() {
        match move_piece(cx, channel, index) {
            Ok(Some(Transfer::Busy)) => break,
            Ok(Some(Transfer::Done | Transfer::Started)) => pieces += 1,
            Ok(None) => {
                channel.state.queues.direct.pop_front();
                settle(cx, channel, index);
            }
            Err(broken) => {
                channel.links.broken = Some(broken);
                break;
            }
        }
    }
    pieces
}

/// Passes the job's next piece to its link. Returns `None` if there is no piece to pass now.
fn move_piece(cx: &Context<'_>, channel: &mut Channel, index: usize) -> Result<Option<Transfer>, (usize, BtlError)> {
    let Channel { links: Links { active, operations, .. }, state: State { queues, .. } } = channel;
    let Some(job) = queues.direct_jobs.get_mut(index) else { return Ok(None) };
    let deep = job.outstanding >= cx.core.parameters.pml_pipeline_depth.max(1);
    if deep || job.error.is_some() || job.next == job.len {
        return Ok(None);
    }
    let names = (job.remote.btl, job.remote.ordinal);
    let Some(link) = active.iter_mut().find(|link| (link.tag, link.ordinal) == names) else {
        job.error = Some(unavailable("the link was replaced"));
        return Ok(None);
    };
    let limits = link.capabilities();
    let limit = match (job.on_device, job.store) {
        (true, _) => limits.device_rdma_limit,
        (false, true) => limits.put_limit,
        (false, false) => limits.get_limit,
    };
    let (len, local, remote) = match job.blocks {
        Some([blocks, theirs]) => {
            let local = Local::Blocks { region: job.local, blocks, len: job.len as u64 };
            (job.len, local, Remote { handle: &job.remote.handle, offset: 0, blocks: Some(theirs) })
        }
        None => {
            let len = (job.len - job.next).min(limit.max(1));
            let region = Region { address: job.local.address.wrapping_add(job.next), len, ..job.local };
            // The sum does not wrap: both were checked against the length of the exposed memory.
            (len, region.into(), Remote::at(&job.remote.handle, job.offset + job.next as u64))
        }
    };
    let store = job.store;
    let moved = cx.peer.start(operations, Operation::Direct(index), |token| {
        // SAFETY: the caller of `start` keeps the memory until the job ends, which waits for the operation.
        unsafe {
            match store {
                true => link.endpoint.put(&local, &remote, token),
                false => link.endpoint.get(&local, &remote, token),
            }
        }
    });
    match moved {
        Ok(Transfer::Busy) => return Ok(Some(Transfer::Busy)),
        Ok(Transfer::Done) => {}
        Ok(Transfer::Started) => job.outstanding += 1,
        Err(error @ BtlError::Unavailable { .. }) => {
            job.error = Some(error.into());
            return Ok(None);
        }
        Err(error) => return Err((link.btl, error)),
    }
    job.next += len;
    link.carried = true;
    Ok(moved.ok())
}

/// Handles the end of a piece.
pub(crate) fn completed(cx: &mut Context<'_>, channel: &mut Channel, index: usize, result: Result<(), BtlError>) {
    let queues = &mut channel.state.queues;
    let Some(job) = queues.direct_jobs.get_mut(index) else { return };
    job.outstanding -= 1;
    if let Err(error) = result {
        job.error.get_or_insert(error.into());
    }
    let again = job.error.is_none() && job.next < job.len && !queues.direct.contains(&index);
    if again {
        queues.direct.push_back(index);
    }
    settle(cx, channel, index);
    advance(cx, channel);
}

/// Ends the jobs of a peer that is gone, unless an operation is under way. The last of those ends its job.
pub(crate) fn abandon(cx: &mut Context<'_>, channel: &mut Channel) {
    let Err(error) = cx.peer.check() else { return };
    let jobs: Vec<usize> = channel.state.queues.direct_jobs.iter().map(|(index, _)| index).collect();
    for index in jobs {
        if let Some(job) = channel.state.queues.direct_jobs.get_mut(index) {
            // What reached the memory before is complete.
            if job.next < job.len || job.outstanding > 0 {
                job.error = Some(error.clone());
            }
        }
        settle(cx, channel, index);
    }
}

/// Ends a job without operations under way, if it failed or all its bytes have moved.
fn settle(cx: &mut Context<'_>, channel: &mut Channel, index: usize) {
    let queues = &mut channel.state.queues;
    let Some(job) = queues.direct_jobs.get(index) else { return };
    if job.outstanding > 0 || (job.error.is_none() && job.next < job.len) {
        return;
    }
    let DirectJob { store, local, on_device, error, request, .. } = queues.direct_jobs.remove(index);
    queues.direct.retain(|&other| other != index);
    if on_device && local.location.class == MemoryClass::Pinned {
        channel.state.page_locked.moved(store, error.is_none());
    }
    request.complete(Status::EMPTY, error, cx.done);
}

fn unavailable(reason: &'static str) -> Error {
    Error::Btl(BtlError::Unavailable { btl: "pml", operation: "a direct access", reason: reason.into() })
}
