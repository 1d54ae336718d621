//! What a link can do, how much of it at a time, and at what cost.

use std::time::Duration;

bitflags::bitflags! {
    /// What an endpoint can do. `SEND` is always there.
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
        /// `alloc` yields fragments of [`FragmentKind::Device`](crate::FragmentKind::Device).
        const DEVICE_FRAGMENTS = 1 << 6;
        /// `DEVICE_PUT` and `DEVICE_GET` only where the memory on both sides is a device's.
        const DEVICE_TO_DEVICE = 1 << 7;
        /// `offer`, `claim` and `withdraw`.
        const OFFER = 1 << 8;
        /// The transport keeps account of messages on a link that breaks. Not together with `SEND_IN_PLACE`.
        const FAILOVER = 1 << 9;
        /// `get` and `put` of blocks at regular distances, between device memories.
        const DEVICE_STRIDED = 1 << 10;
        /// GPUDirect RDMA: the NIC accesses device memory in `get` and `put`. The local memory must be fit for
        /// `register`. Synchronize with the default stream before the call, and before telling the peer of such memory.
        const DEVICE_DIRECT = 1 << 11;
        /// `get` and `put` of local blocks that a kernel finds, between device memories.
        const DEVICE_PACKED = 1 << 12;
    }
}

/// What one endpoint can do and how much at a time. Limits are bytes and count the caller's header. It may change
/// until the endpoint is connected, and shrink when something turns out refused; never while a caller holds `&mut`. The
/// sizes of device messages that `get` and `put` are worth follow what copies turn out to cost, all the time.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Operations.
    pub flags: Flags,
    /// Among a peer's endpoints only those of the highest exclusivity carry messages; the others stand by.
    pub exclusivity: u32,
    /// Largest message of `send_inline`.
    pub inline_limit: usize,
    /// Largest message that should be sent without a handshake.
    pub eager_limit: usize,
    /// Largest fragment.
    pub max_send_size: usize,
    /// Largest fragment of [`FragmentKind::Device`](crate::FragmentKind::Device).
    pub device_max_send_size: usize,
    /// Smallest message for which `get` or `put` is worth its handshake.
    pub min_rdma_size: usize,
    /// Smallest message from device memory for which `get` or `put` is worth its handshake; also where it would fit the
    /// eager limit.
    pub device_min_rdma_size: usize,
    /// Largest message from or to device memory of this side that should be moved by `get` or `put`.
    pub device_max_rdma_size: usize,
    /// Largest single `get` or `put` of device memory.
    pub device_rdma_limit: usize,
    /// Largest single `get`.
    pub get_limit: usize,
    /// Largest single `put`.
    pub put_limit: usize,
    /// Latency of a small message.
    pub latency: Duration,
    /// Bytes a second, for sharing a message among links.
    pub bandwidth: f64,
}

impl Capabilities {
    /// Only messages, no limits but those given: a start for a BTL to fill in.
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

/// An operation whose cost is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message or fragment, the copies into and out of internal buffers included.
    Send,
    /// A one-sided store.
    Put,
    /// A one-sided fetch.
    Get,
}

/// Which side moves the data of a message, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mover {
    /// This side, the receiver, fetches.
    Fetches,
    /// This side, the sender, stores.
    Stores,
    /// The peer, the receiver, fetches.
    PeerFetches,
    /// The peer, the sender, stores.
    PeerStores,
}

impl Mover {
    /// What it does.
    pub fn operation(self) -> Operation {
        match self {
            Mover::Fetches | Mover::PeerFetches => Operation::Get,
            Mover::Stores | Mover::PeerStores => Operation::Put,
        }
    }

    /// Whether it is the peer.
    pub fn is_peer(self) -> bool {
        matches!(self, Mover::PeerFetches | Mover::PeerStores)
    }
}

/// A piecewise-linear cost: `fixed` plus `bytes / bytes_per_second`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Time that does not depend on the size.
    pub fixed: Duration,
    /// Rate of the rest.
    pub bytes_per_second: f64,
}

impl Cost {
    /// Time for `bytes`.
    pub fn of(&self, bytes: u64) -> Duration {
        self.fixed + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second)
    }

    /// Whether it is more than another one for `bytes`.
    #[inline]
    pub fn exceeds(&self, other: &Cost, bytes: u64) -> bool {
        // One that is no worse in either part needs no division.
        let no_worse = self.fixed <= other.fixed && self.bytes_per_second >= other.bytes_per_second;
        !no_worse && self.of(bytes) > other.of(bytes)
    }
}
