//! Counts events of the stack, for `cableway info`, tests and performance variables of a host MPI.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

macro_rules! counters {
    ($( #[doc = $help:literal] $name:ident, )+) => {
        /// Counts the events of one engine. Each counter is exact, but two counters are not read at the same instant.
        #[derive(Debug, Default)]
        pub struct Counters { $( #[doc = $help] pub $name: Counter, )+ }

        impl Counters {
            /// Returns every counter as (name, help, value), in the order of the table.
            pub fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![ $( (stringify!($name), $help.trim(), self.$name.get()), )+ ]
            }

            /// Copies the present values.
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
    /// messages that overtook an earlier message and waited for it
    out_of_order,
    /// eager sends that became a rendezvous because the receiver had too much unexpected data
    flow_controlled,
    /// sends that found the transport busy and waited in a queue
    send_queued,
    /// copies between device and host memory
    device_copies,
    /// bytes copied between device and host memory
    device_bytes,
    /// messages between devices, or a device and page-locked memory, or their pieces, that this process moved by one copy
    device_direct,
    /// one-sided puts and gets that this process made without the owner of the memory
    one_sided_direct,
    /// device allocations of peers that were mapped
    ipc_mappings,
    /// uses of a peer's device allocation that was mapped already
    ipc_hits,
    /// collective operations that Cableway performed
    collectives,
    /// bytes of scratch memory that these operations used
    collective_scratch,
    /// of them, those that exchanged their data through slots in shared host memory
    collective_one_shots,
    /// kernels of such operations that ended without a result, because data of other processes was late
    collective_late_kernels,
    /// collective operations in which one kernel copied the blocks of all ranks
    collective_moves,
    /// calls that the host MPI performed on host copies of device memory
    calls_on_host_copies,
    /// allocations of host memory for such copies; memory that was kept from earlier calls does not count
    host_copy_allocations,
    /// peers whose messages moved to another transport after a connection broke
    failovers,
    /// messages from peers that were refused as malformed
    malformed,
}

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds one.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `n` without an atomic read-modify-write. The caller excludes other writers, for example by a lock. Readers
    /// need no lock.
    #[inline(always)]
    pub fn add_exclusively(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    /// Reads the count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A length that grows and shrinks. The caller excludes other writers. Readers need no lock.
#[derive(Debug, Default)]
pub struct Gauge(AtomicUsize);

impl Gauge {
    /// Adds one.
    #[inline(always)]
    pub fn raise(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }

    /// Subtracts `n`.
    #[inline(always)]
    pub fn lower(&self, n: usize) {
        self.0.store(self.get() - n, Ordering::Relaxed);
    }

    /// Reads the length.
    #[inline(always)]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
