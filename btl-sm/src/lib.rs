//! Byte transfer layer between processes of one node, over shared memory.
//!
//! ```text
//! small messages      copied into a fast box, a ring from one sender to one receiver
//! up to max_send_size copied into a fragment of the sender's segment, to which a box (or the receiver's FIFO) refers
//! the program's blocks  mapped by peers, which read and write them as their own memory (`map`)
//! large messages      the same, or copied once, by the kernel, from one process's memory into the other's (GET, PUT)
//! device data         copied once, by a device, from one process's device memory into the other's (GET, PUT); else in
//!                     fragments of a segment that both processes have registered with the driver
//! ```
//!
//! `segment` describes the layout of the shared memory. `ring` holds the two lock-free rings. `connection` connects and
//! disconnects processes. `endpoint` sends, and `progress` receives. They share only `peer` and `inner`, so that
//! endpoints of different peers share no lock.
//!
//! **Linux only**: memfd, abstract sockets, `process_vm_readv`.

mod blocks;
mod card;
mod connection;
mod copy;
mod cost;
mod device;
mod device_copy;
mod distance;
mod endpoint;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod inner;
mod listener;
mod node;
mod offers;
mod path;
mod peer;
mod pool;
mod prefetch;
mod progress;
mod ring;
mod segment;
mod settings;
mod shared_memory;
mod single_copy;

pub use shared_memory::SharedMemory;

/// The name of this transport.
const NAME: &str = "sm";
