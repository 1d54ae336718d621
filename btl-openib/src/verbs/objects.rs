//! Objects of a device's context: protection domains, completion queues, shared receive queues, address handles.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use cableway_base::fork::Registered;
use rdma_mummy_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_pd, ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::Completion;
use super::context::Context;
use super::path::Path;
use super::results::{answer, made};

/// A protection domain.
pub(crate) struct Protection {
    pub(crate) context: Arc<Context>,
    pub(super) raw: NonNull<ibv_pd>,
}

// SAFETY: see `Context`.
unsafe impl Send for Protection {}
// SAFETY: see `Context`.
unsafe impl Sync for Protection {}

impl Protection {
    /// # Errors
    /// The device's resources are exhausted.
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = made(unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) })?;
        Ok(Arc::new(Protection { context: Arc::clone(context), raw }))
    }

    /// Returns whether the library registers dma-bufs. The device may not support it.
    pub(crate) fn registers_dma_bufs(&self) -> bool {
        self.context.library.ibv_reg_dmabuf_mr.is_some()
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        // SAFETY: what was made in it kept it, and is gone.
        unsafe { (self.context.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A completion channel.
pub(crate) struct Channel {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
    /// Dropped before the channel is destroyed.
    unshared: Option<Registered>,
}

// SAFETY: see `Context`.
unsafe impl Send for Channel {}
// SAFETY: see `Context`.
unsafe impl Sync for Channel {}

impl Channel {
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = made(unsafe { (context.library.ibv_create_comp_channel)(context.raw.as_ptr()) })?;
        // SAFETY: the channel's own descriptor, which its drop closes after it has given this up.
        let unshared = unsafe { Registered::descriptor(BorrowedFd::borrow_raw(raw.as_ref().fd)) };
        let channel = Arc::new(Channel { context: Arc::clone(context), raw, unshared: Some(unshared) });
        fcntl_setfl(channel.descriptor(), fcntl_getfl(channel.descriptor())? | OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// Returns the descriptor that becomes readable when a completion arrives after the queue was armed.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// Takes the pending events.
    pub(crate) fn drain(&self) {
        let (mut queue, mut cookie) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is open and does not block; the function writes both pointers.
        while unsafe { (self.context.library.ibv_get_cq_event)(self.raw.as_ptr(), &raw mut queue, &raw mut cookie) }
            == 0
        {
            // SAFETY: one event of this queue was got.
            unsafe { (self.context.library.ibv_ack_cq_events)(queue, 1) };
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.unshared = None;
        // SAFETY: the queues that use it kept it, and are gone.
        unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    context: Arc<Context>,
    pub(super) raw: NonNull<ibv_cq>,
    _channel: Option<Arc<Channel>>,
}

// SAFETY: see `Context`.
unsafe impl Send for CompletionQueue {}
// SAFETY: see `Context`.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue with room for `entries` completions. An overflow breaks the queue permanently.
    ///
    /// # Errors
    /// The number exceeds the device's limit.
    pub(crate) fn new(context: &Arc<Context>, entries: usize, channel: Option<&Arc<Channel>>) -> io::Result<Arc<Self>> {
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let raw_channel = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: context and channel are open; the cookie is not used.
        let raw = made(unsafe {
            (context.library.ibv_create_cq)(context.raw.as_ptr(), entries, std::ptr::null_mut(), raw_channel, 0)
        })?;
        Ok(Arc::new(CompletionQueue { context: Arc::clone(context), raw, _channel: channel.cloned() }))
    }

    /// Makes room for `entries` completions, including those in the queue.
    ///
    /// # Errors
    /// The number exceeds the device's limit, or the device cannot resize queues.
    pub(crate) fn resize(&self, entries: usize) -> io::Result<()> {
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a live queue, which may be in use meanwhile.
        answer(unsafe { (self.context.library.ibv_resize_cq)(self.raw.as_ptr(), entries) })
    }

    /// Takes completions into `out`. Returns their number.
    ///
    /// # Errors
    /// The queue is broken.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [Completion]) -> io::Result<usize> {
        let broken = || io::Error::other("the completion queue is broken");
        // SAFETY: a live queue, whose context pointer the library filled in.
        let poll = unsafe { (*(*self.raw.as_ptr()).context).ops.poll_cq }.ok_or_else(broken)?;
        // SAFETY: the function writes at most as many completions as `out` has room for.
        let count = unsafe { poll(self.raw.as_ptr(), out.len() as c_int, out.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| broken())
    }

    /// Makes the next completion turn the channel readable. Earlier ones do not: poll again after arming.
    ///
    /// # Errors
    /// The device refused.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: a live queue, whose context pointer the library filled in.
        let request = unsafe { (*(*self.raw.as_ptr()).context).ops.req_notify_cq };
        let request = request.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: a live queue.
        answer(unsafe { request(self.raw.as_ptr(), 0) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that use it kept it, and are gone; its events were acknowledged.
        unsafe { (self.context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

/// Buffers for messages of all its queue pairs.
pub(crate) struct SharedReceiveQueue {
    protection: Arc<Protection>,
    pub(super) raw: NonNull<ibv_srq>,
}

// SAFETY: see `Context`.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: see `Context`.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Creates a queue with room for `entries` buffers.
    ///
    /// # Errors
    /// The number exceeds the device's limit.
    pub(crate) fn new(protection: &Arc<Protection>, entries: usize) -> io::Result<Arc<Self>> {
        let max_wr = u32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut init = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ibv_srq_attr { max_wr, max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the protection domain is live; the function writes back what was granted.
        let raw = made(unsafe { (protection.context.library.ibv_create_srq)(protection.raw.as_ptr(), &raw mut init) })?;
        Ok(Arc::new(SharedReceiveQueue { protection: Arc::clone(protection), raw }))
    }

    /// Posts a buffer of `len` bytes.
    ///
    /// # Safety
    /// The buffer lies in memory registered under `key`. It belongs to the device until a completion names `id`, or the
    /// queue is destroyed.
    ///
    /// # Errors
    /// The queue is full.
    #[inline]
    pub(crate) unsafe fn post(&self, id: u64, address: *mut u8, len: u32, key: u32) -> io::Result<()> {
        let mut piece = ibv_sge { addr: address as u64, length: len, lkey: key };
        let mut work = ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue, whose context pointer the library filled in.
        let post = unsafe { (*(*self.raw.as_ptr()).context).ops.post_srq_recv };
        let post = post.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: one request with one piece; both are copied before the function returns.
        answer(unsafe { post(self.raw.as_ptr(), &raw mut work, &raw mut bad) })
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that use it kept it, and are gone.
        unsafe { (self.protection.context.library.ibv_destroy_srq)(self.raw.as_ptr()) };
    }
}

/// An address handle for datagrams.
pub(crate) struct AddressHandle {
    protection: Arc<Protection>,
    pub(super) raw: NonNull<ibv_ah>,
}

// SAFETY: see `Context`.
unsafe impl Send for AddressHandle {}
// SAFETY: see `Context`.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// # Errors
    /// The path is invalid.
    pub(crate) fn new(protection: &Arc<Protection>, path: &Path) -> io::Result<Arc<Self>> {
        let mut attributes: ibv_ah_attr = path.attributes();
        // SAFETY: the protection domain is live; the function reads the attributes.
        let raw =
            made(unsafe { (protection.context.library.ibv_create_ah)(protection.raw.as_ptr(), &raw mut attributes) })?;
        Ok(Arc::new(AddressHandle { protection: Arc::clone(protection), raw }))
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: made by us, and no work with it is under way: its users keep it until their completions.
        unsafe { (self.protection.context.library.ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}
