//! Copies, and registered host memory.

use super::{Failure, Stream};
use crate::copy::{Direction, RowCopy};

/// Copies by the driver. For all of them the context is current. Until the stream has made the copy, both ranges stay
/// valid, and no one writes the source or accesses the destination.
pub(crate) trait Copies {
    /// Copies `len` bytes in a stream.
    ///
    /// # Safety
    /// As above.
    unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize, stream: &Stream) -> Result<(), Failure>;

    /// Copies rows by one call. The pitches are at least the width and within the device's limit.
    ///
    /// # Safety
    /// As above, for every row.
    unsafe fn copy_rows(&self, piece: &RowCopy, direction: Direction, stream: &Stream) -> Result<(), Failure>;

    /// Copies pieces of one row each by one call, in any order. After a failure some may be under way.
    ///
    /// # Safety
    /// As above, for every piece.
    unsafe fn copy_together(&self, _pieces: &[RowCopy], _stream: &Stream) -> Result<(), Failure> {
        Err(Failure::missing("copy_together"))
    }

    /// Returns whether the driver writes small runs for a device to the queue of its compute engine.
    fn inlines_copies(&self) -> bool {
        false
    }

    /// Copies from host memory like a program's own synchronous call: the source may be written again on return.
    ///
    /// # Safety
    /// Both ranges are valid.
    unsafe fn write(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure>;

    /// Copies to host memory. The copy is complete on return.
    ///
    /// # Safety
    /// Both ranges are valid.
    unsafe fn read(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), Failure>;

    /// Sets bytes, in the order of the default stream.
    ///
    /// # Safety
    /// The range is valid, and no one accesses it until the stream has done this work.
    unsafe fn fill(&self, dst: *mut u8, byte: u8, len: usize) -> Result<(), Failure>;

    /// Registers host memory for every context: page-locked and mapped for kernels. The context is current.
    ///
    /// # Safety
    /// The range stays mapped until it is unregistered or the context is destroyed.
    unsafe fn register_host(&self, address: *mut u8, len: usize) -> Result<(), Failure>;

    /// Ends a registration. The context in which it was made is current.
    ///
    /// # Safety
    /// This process has registered the range, and no device uses it.
    unsafe fn unregister_host(&self, address: *mut u8) -> Result<(), Failure>;

    /// Returns the device address of registered host memory.
    fn device_address(&self, host: *const u8) -> Result<u64, Failure>;
}
