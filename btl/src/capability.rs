//! The abilities, limits and costs of a link.

use std::time::Duration;

bitflags::bitflags! {
    /// The operations of an endpoint. `SEND` is always included.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u32 {
        /// Messages: `send_inline`, `alloc` and `send`.
        const SEND = 1 << 0;
        /// `put` from and to host memory.
        const PUT = 1 << 1;
        /// `get` from and to host memory.
        const GET = 1 << 2;
        /// `send_in_place`.
        const SEND_IN_PLACE = 1 << 3;
        /// `put` from and to device memory.
        const DEVICE_PUT = 1 << 4;
        /// `get` from and to device memory.
        const DEVICE_GET = 1 << 5;
        /// `alloc` of [`FragmentKind::Device`](crate::FragmentKind::Device).
        const DEVICE_FRAGMENTS = 1 << 6;
        /// `DEVICE_PUT` and `DEVICE_GET` only if the memory on both sides is device memory, but for `DEVICE_PAGE_LOCKED`.
        const DEVICE_TO_DEVICE = 1 << 7;
        /// `offer`, `claim` and `withdraw`.
        const OFFER = 1 << 8;
        /// The transport can list the messages of a broken link. Not together with `SEND_IN_PLACE`.
        const FAILOVER = 1 << 9;
        /// `get` and `put` of blocks at regular distances between device memories.
        const DEVICE_STRIDED = 1 << 10;
        /// GPUDirect RDMA: the NIC accesses device memory in `get` and `put`. The local memory must be fit for
        /// `register`. Synchronize with the default stream before the call, and before telling the peer of such memory.
        const DEVICE_DIRECT = 1 << 11;
        /// `get` and `put` of irregular local blocks, which a kernel copies, between device memories.
        const DEVICE_PACKED = 1 << 12;
        /// `DEVICE_PUT` and `DEVICE_GET` also between one run of page-locked host memory of the process that calls, and one
        /// run of the peer's device memory. A call may be refused as unavailable: only the endpoint knows the devices.
        const DEVICE_PAGE_LOCKED = 1 << 13;
    }
}

/// The operations and limits of an endpoint. Limits are bytes and include the caller's header. They may change until
/// the endpoint is connected, and may shrink when an operation proves impossible, but never while a caller holds
/// `&mut`. The size limits for `get` and `put` of device messages follow measured costs at any time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The supported operations.
    pub flags: Flags,
    /// Only the endpoints of the highest exclusivity carry a peer's messages. The others stand by.
    pub exclusivity: u32,
    /// The largest message of `send_inline`.
    pub inline_limit: usize,
    /// The largest message to send eagerly.
    pub eager_limit: usize,
    /// The largest fragment.
    pub max_send_size: usize,
    /// The largest fragment of [`FragmentKind::Device`](crate::FragmentKind::Device).
    pub device_max_send_size: usize,
    /// The smallest message for which `get` or `put` is worth its handshake.
    pub min_rdma_size: usize,
    /// The smallest message from device memory for which `get` or `put` is worth its handshake, even below the eager
    /// limit.
    pub device_min_rdma_size: usize,
    /// The largest message from or to this side's device memory for `get` or `put`.
    pub device_max_rdma_size: usize,
    /// The largest single `get` or `put` of device memory.
    pub device_rdma_limit: usize,
    /// The largest single `get`.
    pub get_limit: usize,
    /// The largest single `put`.
    pub put_limit: usize,
    /// The latency of a small message.
    pub latency: Duration,
    /// The bandwidth in bytes a second, for dividing a message among links.
    pub bandwidth: f64,
}

impl Capabilities {
    /// Returns capabilities with messages only and the given limits, for a BTL to complete.
    pub fn send_only(eager_limit: usize, max_send_size: usize) -> Self {
        Capabilities {
            flags: Flags::SEND,
            exclusivity: 1024,
            inline_limit: 0,
            eager_limit,
            max_send_size,
            device_max_send_size: max_send_size,
            min_rdma_size: usize::MAX,
            device_min_rdma_size: usize::MAX,
            device_max_rdma_size: usize::MAX,
            device_rdma_limit: usize::MAX,
            get_limit: usize::MAX,
            put_limit: usize::MAX,
            latency: Duration::from_micros(1),
            bandwidth: 1e9,
        }
    }
}

/// An operation, for [`Endpoint::cost`](crate::Endpoint::cost).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message or fragment, including the copies into and out of internal buffers.
    Send,
    /// A one-sided store.
    Put,
    /// A one-sided fetch.
    Get,
}

/// The side that moves the data of a message, and the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// This side, the receiver, gets.
    Fetches,
    /// This side, the sender, puts.
    Stores,
    /// The peer, the receiver, gets.
    PeerFetches,
    /// The peer, the sender, puts.
    PeerStores,
}

impl Mover {
    /// Returns the operation.
    pub fn operation(self) -> Operation {
        match self {
            Mover::Fetches | Mover::PeerFetches => Operation::Get,
            Mover::Stores | Mover::PeerStores => Operation::Put,
        }
    }

    /// Returns whether the peer moves the data.
    pub fn is_peer(self) -> bool {
        matches!(self, Mover::PeerFetches | Mover::PeerStores)
    }
}

/// A piecewise-linear cost: `fixed` plus `bytes / bytes_per_second`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The time that does not depend on the size.
    pub fixed: Duration,
    /// The rate of the rest.
    pub bytes_per_second: f64,
}

impl Cost {
    /// Returns the time for `bytes`.
    pub fn of(&self, bytes: u64) -> Duration {
        self.fixed + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second)
    }

    /// Returns whether this cost exceeds another one for `bytes`.
    #[inline]
    pub fn exceeds(&self, other: &Cost, bytes: u64) -> bool {
        // A cost that is no larger in either part needs no division.
        let no_worse = self.fixed <= other.fixed && self.bytes_per_second >= other.bytes_per_second;
        !no_worse && self.of(bytes) > other.of(bytes)
    }
}
