//! Batches of copies by a device, with one completion for the whole batch.

use std::fmt;
use std::marker::PhantomData;

use super::Devices;
use crate::copies::Operation;
use crate::copy::Within;
use crate::error::DeviceError;
use crate::memory::Packing;
use crate::strided::Strided;

/// Several copies that complete together. Created by [`Devices::batch`](crate::Devices::batch).
///
/// Copies may start at once and in any order. No copy is reported as done before the whole batch is. If a driver
/// accepts copies only together, they start when the batch is finished. Dropping an unfinished batch waits for copies
/// that have begun; no others start.
pub struct CopyBatch<'d> {
    pub(super) operation: Box<Operation>,
    pub(super) devices: PhantomData<&'d Devices>,
}

impl CopyBatch<'_> {
    /// Adds a copy of `len` bytes.
    ///
    /// # Safety
    /// Both ranges stay allocated until the completion is done. Until then, no one writes the source or accesses the
    /// destination.
    ///
    /// # Errors
    /// The driver refused. Earlier copies may still run, so the batch must still be finished or dropped.
    pub unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.operation.copy_2d((dst, len), (src, len), len, 1) };
        Ok(())
    }

    /// Adds a copy of `rows` rows of `width` bytes; a side is its address and the distance between its rows.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for every row.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn copy_2d(
        &mut self,
        dst: (*mut u8, usize),
        src: (*const u8, usize),
        width: usize,
        rows: usize,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.operation.copy_2d(dst, src, width, rows) };
        Ok(())
    }

    /// Declares that the host's side of all copies is page-locked, as registered memory is, so that the driver can take
    /// them together. A wrong declaration only costs speed.
    pub fn page_locked(&mut self) {
        self.operation.page_locked();
    }

    /// Declares that kernels in the batch's context can access all memory of its copies: it lies on the context's
    /// device, or [`Imports`](crate::Imports) mapped it there. Then kernels may make the copies if that is faster.
    pub fn reachable(&mut self, within: Within) {
        self.operation.reachable(within);
    }

    /// Adds a copy of `len` bytes in blocks at regular distances, in packing order on both sides. A side is the address
    /// that its blocks are relative to, and the blocks, which have at least `len` bytes. Kernels in the batch's context
    /// can access both sides, as for [`reachable`](Self::reachable).
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for every block; no two blocks of the destination have a byte in common.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn copy_strided(
        &mut self,
        dst: (*mut u8, &Strided),
        src: (*const u8, &Strided),
        len: u64,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.operation.copy_strided(dst, src, len) };
        Ok(())
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
    ///
    /// # Errors
    /// As there.
    pub unsafe fn copy_packed(&mut self, packing: &Packing<'_>) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.operation.copy_packed(packing) };
        Ok(())
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
