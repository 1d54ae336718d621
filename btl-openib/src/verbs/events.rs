//! Asynchronous events of a device.

use std::ffi::c_int;

/// `struct ibv_async_event`, with an integer for the kind.
#[repr(C)]
pub(crate) struct AsyncEvent {
    /// A pointer, or the number of a port.
    pub(super) element: u64,
    pub(super) kind: c_int,
    pub(super) reserved: c_int,
}

impl AsyncEvent {
    /// Kinds whose element is a queue pair.
    pub(super) const QUEUE_PAIR: [c_int; 8] = [1, 2, 3, 4, 5, 6, 7, 16];
}

const _: () = assert!(size_of::<AsyncEvent>() == size_of::<rdma_mummy_sys::ibv_async_event>());

/// An asynchronous event of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// `enum ibv_event_type`.
    pub(crate) kind: c_int,
    /// The queue pair of the event.
    pub(crate) queue_pair: Option<u32>,
}
