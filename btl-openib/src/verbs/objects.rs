//! A device's context and what is made in it.

use std::ffi::{CStr, c_int, c_uint};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use cableway_base::fork::Registered;
use rdma_mummy_sys::{
    ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr, ibv_gid, ibv_pd, ibv_port_attr,
    ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_transport_type,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::forks::unshare;
use super::{Completion, Library, Path};

/// An open device.
pub(crate) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<ibv_context>,
    pub(crate) name: String,
    /// Given up before the device is closed.
    unshared: Option<[Registered; 2]>,
}

// SAFETY: verbs are thread-safe (ibv_*(3)); so for every object below.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What matters of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortFacts {
    pub(crate) number: u8,
    pub(crate) active: bool,
    pub(crate) ethernet: bool,
    pub(crate) lid: u16,
    /// Longest packet, as verbs number them: 1 is 256 bytes, 5 is 4096.
    pub(crate) mtu: u8,
    pub(crate) max_message: u32,
    pub(crate) gids: u16,
    pub(crate) pkeys: u16,
    /// As verbs number them: of one lane, and how many lanes.
    pub(crate) speed: u8,
    pub(crate) width: u8,
}

impl Context {
    /// Opens every device that `wanted` names.
    ///
    /// # Errors
    /// The list of devices cannot be had.
    pub(crate) fn open_all(library: &'static Library, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Arc<Self>>> {
        let mut count = 0;
        // SAFETY: writes the number of devices; the list is freed below.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut contexts = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: one of the list's `count` entries.
            let device = unsafe { *list.add(index) };
            // SAFETY: a device of the list, whose name lives as long.
            let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)(device)) }.to_string_lossy().into_owned();
            if !wanted(&name) {
                continue;
            }
            // SAFETY: a device of the list, which an open context keeps beyond it.
            match NonNull::new(unsafe { (library.ibv_open_device)(device) }) {
                Some(raw) => contexts.push(Arc::new(Context { library, raw, name, unshared: Some(unshare(raw)) })),
                None => log::info!("openib: {name} cannot be opened: {}", io::Error::last_os_error()),
            }
        }
        // SAFETY: the list of above, which nobody uses any more.
        unsafe { (library.ibv_free_device_list)(list) };
        Ok(contexts)
    }

    /// Whether it speaks iWARP, which has no datagrams, no words beside messages, and no sender that waits for buffers.
    pub(crate) fn is_iwarp(&self) -> bool {
        // SAFETY: an open context names its device, which the library keeps for as long.
        unsafe { (*(*self.raw.as_ptr()).device).transport_type == ibv_transport_type::IBV_TRANSPORT_IWARP }
    }

    /// # Errors
    /// The device does not answer.
    pub(crate) fn attributes(&self) -> io::Result<ibv_device_attr> {
        // SAFETY: a structure of integers and bytes.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the function fills the structure.
        answer(unsafe { (self.library.ibv_query_device)(self.raw.as_ptr(), &raw mut attributes) })?;
        Ok(attributes)
    }

    /// # Errors
    /// The device does not answer.
    pub(crate) fn port(&self, number: u8) -> io::Result<PortFacts> {
        const ACTIVE: c_uint = rdma_mummy_sys::ibv_port_state::IBV_PORT_ACTIVE;
        const ETHERNET: u8 = 2;
        // SAFETY: a structure of integers.
        let mut port: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the function fills what the structure has had from the beginning.
        answer(unsafe { (self.library.ibv_query_port)(self.raw.as_ptr(), number, &raw mut port) })?;
        Ok(PortFacts {
            number,
            active: port.state == ACTIVE,
            ethernet: port.link_layer == ETHERNET,
            lid: port.lid,
            mtu: u8::try_from(port.active_mtu).unwrap_or(1),
            max_message: port.max_msg_sz,
            gids: u16::try_from(port.gid_tbl_len).unwrap_or(0),
            pkeys: port.pkey_tbl_len,
            speed: port.active_speed,
            width: port.active_width,
        })
    }

    /// # Errors
    /// There is no such entry.
    pub(crate) fn gid(&self, port: u8, index: u16) -> io::Result<[u8; 16]> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; the function fills the union's 16 bytes.
        answer(unsafe { (self.library.ibv_query_gid)(self.raw.as_ptr(), port, index.into(), &raw mut gid) })?;
        // SAFETY: bytes are valid whatever was written.
        Ok(unsafe { gid.raw })
    }

    /// # Errors
    /// There is no such entry.
    pub(crate) fn pkey(&self, port: u8, index: u16) -> io::Result<u16> {
        let mut key = 0;
        // SAFETY: the context is open; the function writes 16 bits, the higher eight first.
        answer(unsafe { (self.library.ibv_query_pkey)(self.raw.as_ptr(), port, index.into(), &raw mut key) })?;
        Ok(u16::from_be(key))
    }

    /// The descriptor that is readable when an asynchronous event waits. It does not block from here on.
    pub(crate) fn event_descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: the context's own descriptor, open as long as the context.
        let descriptor = unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) };
        fcntl_setfl(descriptor, fcntl_getfl(descriptor)? | OFlags::NONBLOCK)?;
        Ok(descriptor)
    }

    /// The next asynchronous event, acknowledged; none if none waits.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut event = AsyncEvent { element: 0, kind: 0, reserved: 0 };
        // SAFETY: the context is open; the function fills the structure, which is as large as the library's.
        if unsafe { (self.library.ibv_get_async_event)(self.raw.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        let queue_pair = if AsyncEvent::QUEUE_PAIR.contains(&event.kind) {
            let raw = event.element as *const rdma_mummy_sys::ibv_qp;
            // SAFETY: of these kinds the element is a queue pair, which is not destroyed before it is acknowledged.
            Some(unsafe { (*raw).qp_num })
        } else {
            None
        };
        // SAFETY: an event that was got and not acknowledged yet.
        unsafe { (self.library.ibv_ack_async_event)(&raw mut event) };
        Some(Event { kind: event.kind, queue_pair })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.unshared = None;
        // SAFETY: opened by us; whatever was made in it kept it, and is gone.
        unsafe { (self.library.ibv_close_device)(self.raw.as_ptr()) };
    }
}

/// `struct ibv_async_event`, with an integer for the kind.
#[repr(C)]
pub(crate) struct AsyncEvent {
    /// A pointer, or the number of a port.
    element: u64,
    kind: c_int,
    reserved: c_int,
}

impl AsyncEvent {
    const QUEUE_PAIR: [c_int; 8] = [1, 2, 3, 4, 5, 6, 7, 16];
}

const _: () = assert!(size_of::<AsyncEvent>() == size_of::<rdma_mummy_sys::ibv_async_event>());

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// `enum ibv_event_type`.
    pub(crate) kind: c_int,
    /// The queue pair that it is about.
    pub(crate) queue_pair: Option<u32>,
}

/// What may use one another.
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
    /// The device has no more.
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = made(unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) })?;
        Ok(Arc::new(Protection { context: Arc::clone(context), raw }))
    }

    /// Whether the library registers dma-bufs; the device may not.
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

/// What a completion queue can wake a sleeper by.
pub(crate) struct Channel {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
    /// Given up before the channel is destroyed.
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

    /// Readable when a completion has come since the queue was armed.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// Takes the events that wait.
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

/// Where work reports its end.
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
    /// With room for `entries` completions; one too many breaks the queue for good.
    ///
    /// # Errors
    /// More than the device has.
    pub(crate) fn new(context: &Arc<Context>, entries: usize, channel: Option<&Arc<Channel>>) -> io::Result<Arc<Self>> {
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let raw_channel = channel.map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: context and channel are open; the cookie is not used.
        let raw = made(unsafe {
            (context.library.ibv_create_cq)(context.raw.as_ptr(), entries, std::ptr::null_mut(), raw_channel, 0)
        })?;
        Ok(Arc::new(CompletionQueue { context: Arc::clone(context), raw, _channel: channel.cloned() }))
    }

    /// Makes room for `entries` completions, those that wait included.
    ///
    /// # Errors
    /// More than the device has, or it cannot change what it gave.
    pub(crate) fn resize(&self, entries: usize) -> io::Result<()> {
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a live queue, which may be in use meanwhile.
        answer(unsafe { (self.context.library.ibv_resize_cq)(self.raw.as_ptr(), entries) })
    }

    /// Takes completions into `out`; returns how many.
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

    /// Has the next completion make the channel readable. What came before it does not: poll again after arming.
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

/// Buffers for what arrives by any queue pair of it.
pub(crate) struct SharedReceiveQueue {
    protection: Arc<Protection>,
    pub(super) raw: NonNull<ibv_srq>,
}

// SAFETY: see `Context`.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: see `Context`.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// With room for `entries` buffers.
    ///
    /// # Errors
    /// More than the device has.
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

    /// Offers a buffer of `len` bytes.
    ///
    /// # Safety
    /// The buffer lies in memory registered under `key` and is the device's until a completion names `id`, or the
    /// queue is gone.
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

/// A way to a peer for datagrams.
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
    /// The path leads nowhere.
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

/// Verbs return 0, or the error itself, or -1 and leave the error in `errno`.
pub(super) fn answer(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        code => Err(io::Error::from_raw_os_error(code.abs())),
    }
}

pub(super) fn made<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}
