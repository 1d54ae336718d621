//! The memory that a process shares with its peers.
//!
//! Every process has one segment, which its peers map: a sealed memfd, so it has no name that could be left behind,
//! and it can neither shrink nor grow under anyone. Pages come into being when they are first touched.
//!
//! ```text
//! offset                      bytes                                written by
//! 0                           64    tail of the FIFO               peers
//! 64                          64    head of the FIFO               the owner
//! 128                         8 x fifo_cells                       peers push, the owner frees
//! up to a multiple of 64      64 x fifo_cells / fifo_quota         for each peer 8 words by which the owner offers work:
//!                                   8    offer: u64                - the owner, and a peer that claims
//! up to a multiple of 128     boxes x (128 + 32 x box_slots)       fast boxes in which the owner sends:
//!                                   128  consumed: u64             - the receiving peer
//!                                   32   stamp: u64, payload: 24   - the owner
//! up to a multiple of 4096    eager_count x (64 + eager_size)      fragments in which the owner sends:
//!                                   64   generation, len: u32      - the owner
//!                                        returned: u32             - the receiving peer
//!                                   eager_size  payload            - the owner
//! up to a multiple of 4096    large_count x (64 + 64 + large_size) the same, larger, and 40 bytes into a line
//! ```
//!
//! A process that sends from device memory has a second segment, made at that moment and registered with the driver
//! by its owner and by each peer that is sent one: 64-byte fragment headers first, payloads from a multiple of 4096 on.
//!
//! What a peer writes is read as atomics, each word once, and checked. The geometry comes with the handshake as a
//! private copy and is checked against the memfd's size; it is never read from the segment.

mod layout;
mod memory;

pub(crate) use layout::{Class, DeviceGeometry, Geometry, Layout, OFFERS};
pub(crate) use memory::{BoxMemory, FifoMemory, Memory};
