//! Plain types that describe copies by a device.

use crate::location::Location;
use crate::strided::{Strided, rows};

/// The direction of a copy. Each direction has its own stream, so that they overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From device to host memory.
    DeviceToHost,
    /// From host to device memory.
    HostToDevice,
    /// Between device memories that this process can address.
    DeviceToDevice,
    /// Within the memory of one device and context, beside copies between devices.
    WithinDevice,
}

impl Direction {
    /// All directions, in the order of their numbers.
    pub(crate) const ALL: [Direction; 4] =
        [Direction::DeviceToHost, Direction::HostToDevice, Direction::DeviceToDevice, Direction::WithinDevice];

    /// Checks whether both sides are device memory.
    pub(crate) fn is_on_devices(self) -> bool {
        matches!(self, Direction::DeviceToDevice | Direction::WithinDevice)
    }

    /// Returns the direction of a copy, and the side whose context makes it, or `None` if both sides are host memory.
    pub fn between(from: &Location, to: &Location) -> Option<(Direction, Location)> {
        match (from.on_device(), to.on_device()) {
            (false, false) => None,
            (true, false) => Some((Self::DeviceToHost, *from)),
            (false, true) => Some((Self::HostToDevice, *to)),
            (true, true) => Some((Self::DeviceToDevice, *from)),
        }
    }
}

/// The work that a batch of copies waits for first.
///
/// The variants are sorted: a batch for several operations takes the largest order of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// No work, because an earlier batch of the same operation has waited.
    None,
    /// No work, because the driver completes the program's synchronous calls on the buffer. For the first batch of an
    /// operation on a user's buffer. The calling thread must not capture a stream.
    Synchronised,
    /// Work already in the context's legacy default stream, if the parameter `default_stream_order` requires it. For
    /// the first batch of an operation on a user's buffer. The calling thread must not capture a stream.
    AfterDefaultStream,
}

/// Where the two sides of a batch's copies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// All memory is on the context's device.
    OneDevice,
    /// Some memory is on another device and mapped.
    OneNode,
}

/// The work of copy engines that would replace a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineWork {
    /// The number of driver calls.
    pub calls: u64,
    /// The number of rows in all calls.
    pub rows: u64,
}

/// A copy of rows. A copy of one run of bytes has one row.
#[derive(Clone, Copy, Debug)]
pub struct RowCopy {
    /// The address of the first row of the destination.
    pub dst: *mut u8,
    /// The distance between rows of the destination, in bytes.
    pub dst_pitch: usize,
    /// The address of the first row of the source.
    pub src: *const u8,
    /// The distance between rows of the source, in bytes.
    pub src_pitch: usize,
    /// The bytes of a row.
    pub width: usize,
    /// The number of rows.
    pub rows: usize,
}

// SAFETY: the addresses are for the driver and are never dereferenced here. The caller that adds the copy promises that
// they stay valid, on any thread.
unsafe impl Send for RowCopy {}

impl RowCopy {
    /// Describes a copy of one run of bytes.
    pub fn run(dst: *mut u8, src: *const u8, len: usize) -> RowCopy {
        RowCopy { dst, dst_pitch: len, src, src_pitch: len, width: len, rows: 1 }
    }
}

/// A copy of blocks at regular distances, in packing order on both sides.
#[derive(Clone, Copy, Debug)]
pub struct BlockCopy {
    /// The address that the destination's blocks are relative to.
    pub dst: *mut u8,
    /// The blocks of the destination, which have at least `len` bytes.
    pub dst_blocks: Strided,
    /// The address that the source's blocks are relative to.
    pub src: *const u8,
    /// The blocks of the source, which have at least `len` bytes.
    pub src_blocks: Strided,
    /// The number of bytes.
    pub len: u64,
}

// SAFETY: as for `RowCopy`.
unsafe impl Send for BlockCopy {}

impl BlockCopy {
    /// Describes a copy of one run of bytes.
    pub fn run(dst: *mut u8, src: *const u8, len: usize) -> BlockCopy {
        let all = Strided::run(len as u64);
        BlockCopy { dst, dst_blocks: all, src, src_blocks: all, len: len as u64 }
    }

    /// Returns the copies for copy engines.
    pub(crate) fn rows(&self) -> Vec<RowCopy> {
        let mut copies = Vec::new();
        rows(&self.dst_blocks, &self.src_blocks, self.len, |rows| {
            copies.push(RowCopy {
                dst: self.dst.wrapping_offset(rows.to.0 as isize),
                dst_pitch: rows.to.1,
                src: self.src.wrapping_offset(rows.from.0 as isize),
                src_pitch: rows.from.1,
                width: rows.width,
                rows: rows.rows,
            });
        });
        copies
    }
}
