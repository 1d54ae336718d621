//! librdmacm's functions, and their arguments.

use std::ffi::{c_int, c_uint, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rdma_mummy_sys::{ibv_qp_attr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};

use crate::verbs::library::functions;
use crate::verbs::path::FOR_EVER;

functions! {
    Manager, "librdmacm.so.1";
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_destroy_event_channel(*mut rdma_event_channel);
    fn rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
    fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
    fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
    fn rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
    fn rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
    fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
    fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
    fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
    fn rdma_establish(*mut rdma_cm_id) -> c_int;
    fn rdma_init_qp_attr(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
    fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    fn rdma_get_src_port(*mut rdma_cm_id) -> u16;
}

/// The numbers of concurrent reads that a peer serves and issues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    pub(crate) serves: u8,
    pub(crate) makes: u8,
}

/// The connection parameters that one end sends.
pub(crate) struct Param<'a> {
    pub(crate) private_data: &'a [u8],
    pub(crate) number: u32,
    pub(crate) reads: u8,
    pub(crate) retries: u8,
}

impl Param<'_> {
    pub(super) fn raw(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(0),
            responder_resources: self.reads,
            initiator_depth: self.reads,
            flow_control: 1,
            retry_count: self.retries,
            rnr_retry_count: FOR_EVER,
            srq: 1,
            qp_num: self.number,
        }
    }
}

/// An address in the system's form.
pub(super) enum Socket {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Socket {
    pub(super) fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Socket::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(Ipv4Addr::octets(address.ip())) },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Socket::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: Ipv6Addr::octets(address.ip()) },
                sin6_scope_id: 0,
            }),
        }
    }

    pub(super) fn raw(&mut self) -> *mut libc::sockaddr {
        match self {
            Socket::V4(address) => std::ptr::from_mut(address).cast(),
            Socket::V6(address) => std::ptr::from_mut(address).cast(),
        }
    }
}
