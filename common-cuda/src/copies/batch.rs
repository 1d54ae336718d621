//! Batches of copies by a device, with one completion for the whole batch.

use std::fmt;
use std::sync::Arc;

use super::operation::{CopyQueue, Operation, Start};
use crate::copy::{BlockCopy, RowCopy, Within};
use crate::error::DeviceError;
use crate::memory::Packing;

impl CopyQueue {
    /// Begins to gather copies.
    pub(crate) fn batch(self: &Arc<Self>, start: Start) -> CopyBatch {
        CopyBatch { operation: self.operation(start) }
    }

    /// Returns a completion that is done with the present work of the default stream.
    pub(crate) fn after_default_stream(self: &Arc<Self>) -> Result<Completion, DeviceError> {
        Ok(Completion { operation: self.default_stream_operation()? })
    }
}

/// Several copies that complete together. Created by [`Devices::batch`](crate::Devices::batch).
///
/// Copies start when the batch is finished, in any order. No copy is reported as done before the whole batch is.
/// Dropping an unfinished batch starts none.
pub struct CopyBatch {
    pub(super) operation: Box<Operation>,
}

impl CopyBatch {
    /// Adds a copy of `len` bytes.
    ///
    /// # Safety
    /// Both ranges stay allocated until the completion is done. Until then, no one writes the source or accesses the
    /// destination.
    pub unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.copy_rows(RowCopy::run(dst, src, len)) };
    }

    /// Adds a copy of rows.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for every row.
    pub unsafe fn copy_rows(&mut self, copy: RowCopy) {
        let bytes = copy.width.saturating_mul(copy.rows);
        if bytes == 0 {
            return;
        }
        let copies = &mut self.operation.copies;
        copies.bytes = copies.bytes.saturating_add(bytes);
        let dense = copy.dst_pitch == copy.width && copy.src_pitch == copy.width;
        copies.pieces.push(if dense { RowCopy { width: bytes, rows: 1, ..copy } } else { copy });
    }

    /// Declares that the host's side of all copies is page-locked, as registered memory is, so that the driver can take
    /// them together. A wrong declaration only costs speed.
    pub fn page_locked(&mut self) {
        self.operation.copies.page_locked = true;
    }

    /// Declares that kernels in the batch's context can access all memory of its copies: it lies on the context's
    /// device, or [`Imports`](crate::Imports) mapped it there. Then kernels may make the copies if that is faster.
    pub fn reachable(&mut self, within: Within) {
        self.operation.copies.reachable = Some(within);
    }

    /// Adds a copy of blocks at regular distances. Kernels in the batch's context can access both sides, as for
    /// [`reachable`](Self::reachable).
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for every block; no two blocks of the destination have a byte in common.
    pub unsafe fn copy_blocks(&mut self, copy: BlockCopy) {
        if copy.len != 0 {
            let copies = &mut self.operation.copies;
            copies.bytes = copies.bytes.saturating_add(copy.len as usize);
            copies.blocks.push(copy);
        }
    }

    /// Adds a range of packed bytes to pack (in a batch from device to host), to unpack (from host to device), or
    /// either (between devices). Before that, [`Devices::kernel_packs`](crate::Devices::kernel_packs) or, between
    /// devices, [`Devices::packs_between`](crate::Devices::packs_between) must have returned true. Between devices copy
    /// engines may be excluded as a replacement. If a kernel then finds no room, the batch or its completion fails
    /// ([`DeviceError::wants_kernel`]).
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for every block of the range. If unpacked, no two blocks have a byte in common. All
    /// blocks of the message lie in one allocation of the context's device. Between devices, kernels in the batch's
    /// context can access the packed bytes, as for [`reachable`](Self::reachable).
    pub unsafe fn copy_packed(&mut self, packing: Packing) {
        if packing.len != 0 {
            let copies = &mut self.operation.copies;
            copies.bytes = copies.bytes.saturating_add(packing.len as usize);
            copies.stretches.push(packing);
        }
    }

    /// Finishes the batch.
    ///
    /// # Errors
    /// The context is destroyed, the calling thread captures a graph, or the driver refused. No copy of the batch is
    /// under way then, and the content of the destinations is undefined.
    pub fn finish(self) -> Result<Completion, DeviceError> {
        Ok(Completion { operation: self.operation.finish()? })
    }
}

/// Asynchronous copies under way. Dropping this waits for them; after that the memory belongs to the caller again.
#[must_use = "dropping it waits for the copies"]
pub struct Completion {
    pub(super) operation: Option<Box<Operation>>,
}

impl Completion {
    /// Returns a completion that is done already.
    pub const DONE: Completion = Completion { operation: None };

    /// Checks whether the copies are done. Never blocks.
    ///
    /// # Errors
    /// The copies failed, or their context was destroyed. The content of the destination is undefined.
    pub fn poll(&mut self) -> Result<bool, DeviceError> {
        let Some(operation) = &mut self.operation else { return Ok(true) };
        let result = operation.poll();
        if !matches!(result, Ok(false))
            && let Some(operation) = self.operation.take()
        {
            operation.rest();
        }
        result
    }

    /// Waits until the copies are done.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn wait(mut self) -> Result<(), DeviceError> {
        self.block()
    }

    fn block(&mut self) -> Result<(), DeviceError> {
        // Spin long enough for a small copy, but not so long that other threads starve.
        const SPINS: usize = 64;
        let mut polls = 0;
        while !self.poll()? {
            polls += 1;
            if polls < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        Ok(())
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Err(error) = self.block() {
            log::warn!("copies whose completion was dropped failed: {error}");
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("done", &self.operation.is_none()).finish()
    }
}
