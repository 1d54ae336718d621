//! An open device: its attributes, ports and asynchronous events.

use std::ffi::{CStr, c_uint};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use cableway_base::fork::Registered;
use rdma_mummy_sys::{ibv_context, ibv_device_attr, ibv_gid, ibv_port_attr, ibv_transport_type};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::events::{AsyncEvent, Event};
use super::forks::unshare;
use super::library::Library;
use super::results::answer;

/// An open device.
pub(crate) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<ibv_context>,
    pub(crate) name: String,
    /// Dropped before the device is closed.
    unshared: Option<[Registered; 2]>,
}

// SAFETY: verbs are thread-safe (ibv_*(3)); so for every object below.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The relevant attributes of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortFacts {
    pub(crate) number: u8,
    pub(crate) active: bool,
    pub(crate) ethernet: bool,
    pub(crate) lid: u16,
    /// The longest packet, as a code of verbs: 1 is 256 bytes, 5 is 4096.
    pub(crate) mtu: u8,
    pub(crate) max_message: u32,
    pub(crate) gids: u16,
    pub(crate) pkeys: u16,
    /// The codes of verbs for the speed of one lane and the number of lanes.
    pub(crate) speed: u8,
    pub(crate) width: u8,
}

impl Context {
    /// Opens every device that `wanted` accepts.
    ///
    /// # Errors
    /// The devices cannot be listed.
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

    /// Returns whether it uses iWARP, which has no datagrams, no immediate data, and no RNR retries.
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

    /// Returns the descriptor that is readable when an asynchronous event is pending. From now on it does not block.
    pub(crate) fn event_descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: the context's own descriptor, open as long as the context.
        let descriptor = unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) };
        fcntl_setfl(descriptor, fcntl_getfl(descriptor)? | OFlags::NONBLOCK)?;
        Ok(descriptor)
    }

    /// Returns and acknowledges the next asynchronous event, or `None` if none is pending.
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
