//! The memory that a process shares with its peers.
//!
//! Every process has one segment, which its peers map. It is a sealed memfd: it has no name that could be left behind,
//! and its size cannot change. A page uses memory only after its first access.
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
//! A process that sends from device memory has a second segment, made at the first such send. Its owner registers it
//! with the driver, and so does each peer that receives such a fragment. Fragment headers of 64 bytes come first, and
//! payloads begin at a multiple of 4096.
//!
//! Words that a peer writes are read as atomics, once each, and checked. The geometry comes as a private copy with the
//! handshake and is checked against the memfd's size. It is never read from the segment.

mod layout;
mod memory;

pub(crate) use layout::{Class, DeviceGeometry, Geometry, Layout, OFFERS};
pub(crate) use memory::{BoxMemory, FifoMemory, Memory};
