//! The connection manager of rdma-core, librdmacm. It resolves routes to IP addresses and connects queue pairs.
//!
//! This module creates the queue pairs itself. The manager opens devices a second time and learns only the queue pair
//! numbers.

mod manager;

use std::ffi::{CStr, c_int};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use cableway_base::fork::Registered;
use rdma_mummy_sys::{
    ibv_qp_attr, ibv_qp_state, rdma_cm_event, rdma_cm_event_type as kind, rdma_cm_id, rdma_event_channel,
    rdma_port_space,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use self::manager::{Manager, Socket};
pub(crate) use self::manager::{Param, Reads};
use super::library::Library;
use super::results::{answer, made};

/// The event channel of connection manager ids.
pub(crate) struct Events {
    manager: &'static Manager,
    raw: NonNull<rdma_event_channel>,
    /// Dropped before the channel is destroyed.
    unshared: Option<Registered>,
}

// SAFETY: the manager's functions are thread-safe (rdma_cm(7)).
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

/// An event of a connection manager id.
#[derive(Debug)]
pub(crate) enum CmEvent {
    /// The peer's address is resolved.
    AddressResolved,
    /// The route is resolved; the request can be sent.
    RouteResolved,
    /// A connection request reached a listening id.
    ConnectRequest(ConnectRequest),
    /// The peer accepted, and waits until the own queue pair is connected.
    ConnectResponse {
        private_data: Vec<u8>,
        reads: Reads,
    },
    /// The connection is established. Carries the peer's private data on an active side that received no
    /// [`ConnectResponse`](Self::ConnectResponse).
    Established {
        private_data: Vec<u8>,
    },
    /// The peer rejected the request, or no process listens there.
    Rejected {
        private_data: Vec<u8>,
    },
    Failed {
        reason: String,
    },
    /// The peer closed its end.
    Disconnected,
    /// An event that needs no action.
    Other,
}

/// A connection request.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    /// The id to reply on.
    pub(crate) id: Id,
    pub(crate) private_data: Vec<u8>,
    pub(crate) reads: Reads,
}

impl Events {
    /// # Errors
    /// There is no librdmacm, or the kernel has no such manager.
    pub(crate) fn new() -> Result<Arc<Self>, String> {
        let manager = Manager::load()?;
        let failed = |error: io::Error| format!("the kernel's connection manager does not answer: {error}");
        // SAFETY: no arguments.
        let raw = made(unsafe { (manager.rdma_create_event_channel)() }).map_err(failed)?;
        // SAFETY: the channel's own descriptor, which its drop closes after it has given this up.
        let unshared = unsafe { Registered::descriptor(BorrowedFd::borrow_raw(raw.as_ref().fd)) };
        let events = Events { manager, raw, unshared: Some(unshared) };
        let descriptor = events.descriptor();
        let flags = fcntl_getfl(descriptor).map_err(|errno| failed(errno.into()))?;
        fcntl_setfl(descriptor, flags | OFlags::NONBLOCK).map_err(|errno| failed(errno.into()))?;
        Ok(Arc::new(events))
    }

    /// Returns a descriptor that becomes readable when an event waits.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// Takes the next event, with the [`key`](Id::key) of its id; none if none waits.
    ///
    /// # Errors
    /// The kernel does not answer any more.
    pub(crate) fn next(self: &Arc<Self>) -> io::Result<Option<(usize, CmEvent)>> {
        let mut event: *mut rdma_cm_event = std::ptr::null_mut();
        // SAFETY: the channel is open and does not block; the function writes the pointer.
        match answer(unsafe { (self.manager.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) }) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: an event that was got lives until it is acknowledged.
        let read = self.read(unsafe { &*event });
        // SAFETY: an event that was got, and of which nothing is kept.
        answer(unsafe { (self.manager.rdma_ack_cm_event)(event) })?;
        Ok(Some(read))
    }

    fn read(self: &Arc<Self>, event: &rdma_cm_event) -> (usize, CmEvent) {
        // SAFETY: connected ids alone are made here, whose events have this variant.
        let param = unsafe { event.param.conn };
        let private_data = || {
            if param.private_data.is_null() {
                return Vec::new();
            }
            // SAFETY: the event holds as many bytes as it says.
            unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), param.private_data_len.into()) }
                .to_vec()
        };
        let reads = || Reads { serves: param.responder_resources, makes: param.initiator_depth };
        let failed = |what: &str| {
            let error = io::Error::from_raw_os_error(event.status.abs());
            CmEvent::Failed { reason: format!("{what} (status {}, {error})", event.status) }
        };
        let mut key = event.id as usize;
        let event = match event.event {
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEvent::AddressResolved,
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEvent::RouteResolved,
            kind::RDMA_CM_EVENT_ADDR_ERROR => failed("cannot resolve its address"),
            kind::RDMA_CM_EVENT_ROUTE_ERROR => failed("no route leads to its address"),
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                key = event.listen_id as usize;
                match NonNull::new(event.id) {
                    Some(raw) => {
                        let id = Id { raw, events: Arc::clone(self) };
                        CmEvent::ConnectRequest(ConnectRequest { id, private_data: private_data(), reads: reads() })
                    }
                    None => CmEvent::Other,
                }
            }
            kind::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                CmEvent::ConnectResponse { private_data: private_data(), reads: reads() }
            }
            kind::RDMA_CM_EVENT_ESTABLISHED => CmEvent::Established { private_data: private_data() },
            kind::RDMA_CM_EVENT_REJECTED => CmEvent::Rejected { private_data: private_data() },
            kind::RDMA_CM_EVENT_CONNECT_ERROR => failed("the connection was not made"),
            kind::RDMA_CM_EVENT_UNREACHABLE => failed("it does not answer"),
            kind::RDMA_CM_EVENT_DISCONNECTED => CmEvent::Disconnected,
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => failed("the device here was removed"),
            _ => CmEvent::Other,
        };
        (key, event)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.unshared = None;
        // SAFETY: its ids kept it, and are gone.
        unsafe { (self.manager.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// One end of a connection, or a listener. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Id {
    raw: NonNull<rdma_cm_id>,
    events: Arc<Events>,
}

// SAFETY: as for `Events`.
unsafe impl Send for Id {}
// SAFETY: as for `Events`.
unsafe impl Sync for Id {}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Events").field(&self.raw).finish()
    }
}

impl Id {
    /// # Errors
    /// The kernel has no more.
    fn new(events: &Arc<Events>) -> io::Result<Self> {
        let mut raw = std::ptr::null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is open; the function writes the pointer.
        answer(unsafe {
            (events.manager.rdma_create_id)(events.raw.as_ptr(), &raw mut raw, std::ptr::null_mut(), space)
        })?;
        Ok(Id { raw: made(raw)?, events: Arc::clone(events) })
    }

    /// Sets the type of service of sent packets. On RoCE it is the traffic class, also of the manager's own packets,
    /// and the kernel derives the service level from it. On iWARP nothing else marks a connection's packets, and a
    /// listening id passes its value to all connections that it accepts. Do not call it on InfiniBand, where it selects
    /// another route.
    fn set_type_of_service(&self, mut service: u8) {
        const LEVEL_ID: c_int = 0;
        const TYPE_OF_SERVICE: c_int = 0;
        let value = (&raw mut service).cast();
        // SAFETY: a live id; the function reads as many bytes as it is told.
        let set = answer(unsafe {
            (self.events.manager.rdma_set_option)(self.raw.as_ptr(), LEVEL_ID, TYPE_OF_SERVICE, value, 1)
        });
        if let Err(error) = set {
            cableway_base::warn_once("openib/type-of-service", || {
                format!("openib: librdmacm marks nothing with btl_openib_traffic_class={service}: {error}")
            });
        }
    }

    /// Listens at `ip` on a free port, if the address belongs to port `port` of `device`, and to the partition at table
    /// index `partition` where the network has partitions.
    ///
    /// # Errors
    /// The address belongs elsewhere, or the kernel refuses.
    pub(crate) fn listen(
        events: &Arc<Events>,
        device: &str,
        port: u8,
        partition: Option<u16>,
        ip: IpAddr,
        service: Option<u8>,
    ) -> io::Result<(Self, SocketAddr)> {
        /// Peers repeat requests that exceed the backlog.
        const BACKLOG: c_int = 1024;
        let id = Self::new(events)?;
        if let Some(service) = service {
            id.set_type_of_service(service);
        }
        let mut address = Socket::new(SocketAddr::new(ip, 0));
        // SAFETY: a live id; the function reads the address.
        answer(unsafe { (events.manager.rdma_bind_addr)(id.raw.as_ptr(), address.raw()) })?;
        if id.device() != Some((device.to_owned(), port)) {
            return Err(io::Error::other(format!("it belongs to {:?}", id.device())));
        }
        if let Some(wanted) = partition {
            let (attributes, _) = id.attributes(ibv_qp_state::IBV_QPS_INIT)?;
            if attributes.pkey_index != wanted {
                let reason = format!("it belongs to the partition at {} of the port's table", attributes.pkey_index);
                return Err(io::Error::other(reason));
            }
        }
        // SAFETY: a live id, bound.
        answer(unsafe { (events.manager.rdma_listen)(id.raw.as_ptr(), BACKLOG) })?;
        // SAFETY: as above.
        let number = u16::from_be(unsafe { (events.manager.rdma_get_src_port)(id.raw.as_ptr()) });
        Ok((id, SocketAddr::new(ip, number)))
    }

    /// Starts to resolve the address `to`, from the own address `from`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn resolve(
        events: &Arc<Events>,
        from: IpAddr,
        to: SocketAddr,
        service: Option<u8>,
        patience_ms: i32,
    ) -> io::Result<Self> {
        let id = Self::new(events)?;
        if let Some(service) = service {
            id.set_type_of_service(service);
        }
        let (mut from, mut to) = (Socket::new(SocketAddr::new(from, 0)), Socket::new(to));
        // SAFETY: a live id; the function reads both addresses.
        answer(unsafe { (events.manager.rdma_resolve_addr)(id.raw.as_ptr(), from.raw(), to.raw(), patience_ms) })?;
        Ok(id)
    }

    /// After [`CmEvent::AddressResolved`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn resolve_route(&self, patience_ms: i32) -> io::Result<()> {
        // SAFETY: a live id.
        answer(unsafe { (self.events.manager.rdma_resolve_route)(self.raw.as_ptr(), patience_ms) })
    }

    /// Sends the connection request. On iWARP this may block on the peer's host.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn connect(&self, param: &Param<'_>) -> io::Result<()> {
        let mut raw = param.raw();
        // SAFETY: a live id; the function reads the parameters and copies what is said.
        answer(unsafe { (self.events.manager.rdma_connect)(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Accepts a connection whose queue pair is already connected.
    ///
    /// # Errors
    /// The kernel refuses, or the peer has gone.
    pub(crate) fn accept(&self, param: &Param<'_>) -> io::Result<()> {
        let mut raw = param.raw();
        // SAFETY: a live id; the function reads the parameters and copies what is said.
        answer(unsafe { (self.events.manager.rdma_accept)(self.raw.as_ptr(), &raw mut raw) })
    }

    /// Rejects a connection request. A peer that has ended receives nothing.
    pub(crate) fn reject(&self, private_data: &[u8]) {
        let len = u8::try_from(private_data.len()).unwrap_or(0);
        // SAFETY: a live id; the function copies what is said.
        let rejected =
            answer(unsafe { (self.events.manager.rdma_reject)(self.raw.as_ptr(), private_data.as_ptr().cast(), len) });
        if let Err(error) = rejected {
            log::debug!("openib: a refusal is not sent: {error}");
        }
    }

    /// Confirms to the peer that the own queue pair is connected, after [`CmEvent::ConnectResponse`].
    ///
    /// # Errors
    /// The kernel refuses, or the peer has gone.
    pub(crate) fn establish(&self) -> io::Result<()> {
        // SAFETY: a live id.
        answer(unsafe { (self.events.manager.rdma_establish)(self.raw.as_ptr()) })
    }

    /// Returns the key that names this id in events, unique while it lives.
    pub(crate) fn key(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Returns the attributes that move a queue pair to `state`, and their mask.
    pub(super) fn attributes(&self, state: ibv_qp_state::Type) -> io::Result<(ibv_qp_attr, c_int)> {
        // SAFETY: a structure of integers, and of unions of bytes.
        let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: a live id; the function writes both.
        answer(unsafe {
            (self.events.manager.rdma_init_qp_attr)(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        })?;
        Ok((attributes, mask))
    }

    /// Returns the device and port that the id's address belongs to.
    fn device(&self) -> Option<(String, u8)> {
        // SAFETY: a live id, which nobody changes but its owner.
        let id = unsafe { self.raw.as_ref() };
        let context = NonNull::new(id.verbs)?;
        let library = Library::load().ok()?;
        // SAFETY: an open context names its device, whose name lives as long.
        let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)(context.as_ref().device)) };
        Some((name.to_string_lossy().into_owned(), id.port_num))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: made by the manager, and all its events that were got are acknowledged.
        unsafe { (self.events.manager.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}
