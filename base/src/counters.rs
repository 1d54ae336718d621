//! Counters of what the stack did, for `cableway info`, tests and performance variables of a host MPI.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

macro_rules! counters {
    ($( #[doc = $help:literal] $name:ident, )+) => {
        /// One engine's counters. Relaxed: each is right by itself, no order between two of them is promised.
        #[derive(Debug, Default)]
        pub struct Counters { $( #[doc = $help] pub $name: Counter, )+ }

        impl Counters {
            /// Every counter as (name, help, value), in the order of the table.
            pub fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![ $( (stringify!($name), $help.trim(), self.$name.get()), )+ ]
            }

            /// The counts as they are now, apart from the counters.
            pub fn snapshot(&self) -> Counters {
                Counters { $( $name: Counter(AtomicU64::new(self.$name.get())), )+ }
            }
        }
    };
}

counters! {
    /// messages sent eagerly
    sends_eager,
    /// messages sent by rendezvous (any of get, put, pipelined send)
    sends_rendezvous,
    /// messages whose data the receiver fetched by GET
    protocol_get,
    /// messages whose data the sender stored by PUT
    protocol_put,
    /// messages whose data went in pipelined fragments
    protocol_fragments,
    /// bytes sent eagerly
    bytes_eager,
    /// bytes that the receiver fetched by GET
    bytes_get,
    /// bytes that the sender stored by PUT
    bytes_put,
    /// bytes that went in pipelined fragments
    bytes_fragments,
    /// messages that found no posted receive
    unexpected,
    /// messages that arrived before one sent earlier and were parked
    out_of_order,
    /// sends made a rendezvous because the receiver had too much unexpected data
    flow_controlled,
    /// sends that found the transport busy and waited in a queue
    send_queued,
    /// copies between device and host memory
    device_copies,
    /// bytes copied between device and host memory
    device_bytes,
    /// messages between devices, or pieces of them, that went by one copy which this process had made
    device_direct,
    /// receives into device memory whose senders were told the buffer's address in advance
    invitations,
    /// allocations of peers' devices that were mapped
    ipc_mappings,
    /// uses of such an allocation that found it mapped
    ipc_hits,
    /// peers whose messages another transport took over after a connection broke
    failovers,
    /// messages from peers that were refused as malformed
    malformed,
}

/// A monotonic count.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `n` more.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts one more.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `n` more without an atomic read-modify-write. The caller excludes everybody else who adds, by a lock for
    /// example; to read needs no lock.
    #[inline(always)]
    pub fn add_exclusively(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    /// The count so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A length that goes up and down. The caller excludes everybody else who changes it; to read needs no lock.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

impl Gauge {
    /// Raises it by one.
    #[inline(always)]
    pub fn raise(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    /// Lowers it by `n`.
    #[inline(always)]
    pub fn lower(&self, n: usize) {
        self.0.store(self.get() - n, Ordering::Relaxed);
    }

    /// The length now.
    #[inline(always)]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
