//! Copies that a device carries out: several in a batch, one completion for all of them.

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
/// Copies may start at once and in any order among themselves; none is done before the batch's completion is. Where
/// a driver takes copies only together, they start when the batch is finished. A batch dropped unfinished has copied
/// nothing, or has waited for what it began.
pub struct CopyBatch<'d> {
    pub(super) operation: Box<Operation>,
    pub(super) devices: PhantomData<&'d Devices>,
}

impl CopyBatch<'_> {
    /// Adds a copy of `len` bytes.
    ///
    /// # Safety
    /// Both ranges stay allocated until the completion is done, and nothing writes the source or touches the
    /// destination until then.
    ///
    /// # Errors
    /// The driver refused; copies added before may still run, so the batch must still be finished or dropped.
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

    /// Says that the host's side of all copies is page-locked, as registered memory is, so that the driver may be given
    /// them together. Memory that turns out not to be costs speed.
    pub fn page_locked(&mut self) {
        self.operation.page_locked();
    }

    /// Says that kernels in the batch's context reach all memory of its copies: it lies on the context's device, or was
    /// mapped there by [`Imports`](crate::Imports). Then they may make the copies, where that is faster.
    pub fn reachable(&mut self, within: Within) {
        self.operation.reachable(within);
    }

    /// Adds a copy of `len` bytes in blocks at regular distances, in packing order on both sides; a side is the address
    /// that its blocks are relative to, and the blocks, of `len` bytes at least. Kernels in the batch's context reach
    /// both sides, as [`reachable`](Self::reachable) says.
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

    /// Adds a stretch of a message to pack, in a batch from device to host, or to unpack, in one from host to device:
    /// [`Devices::kernel_packs`](crate::Devices::kernel_packs) has just said yes. Or either, in a batch between devices:
    /// [`Devices::packs_between`](crate::Devices::packs_between) has. There, where copy engines are not to take the place of
    /// a kernel that finds no room, the batch or its completion fails ([`DeviceError::wants_kernel`]).
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for every block of the stretch; if unpacked, no two blocks have a byte in common. All
    /// blocks of the message lie in one allocation of the context's device. Between devices, kernels in the batch's
    /// context reach the packed bytes, as [`reachable`](Self::reachable) says.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn copy_packed(&mut self, packing: &Packing<'_>) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.operation.copy_packed(packing) };
        Ok(())
    }

    /// Ends the batch.
    ///
    /// # Errors
    /// The context is gone, the calling thread captures a graph, or the driver refused. Nothing of the batch is under
    /// way any more then; the destinations' content is undefined.
    pub fn finish(self) -> Result<Completion, DeviceError> {
        Ok(Completion { operation: self.operation.finish()? })
    }
}

/// Asynchronous copies on their way. Dropped before it is done, it waits: the memory is the caller's again after.
#[must_use = "dropping it waits for the copies"]
pub struct Completion {
    pub(super) operation: Option<Box<Operation>>,
}

impl Completion {
    /// One that is done already.
    pub const DONE: Completion = Completion { operation: None };

    /// Checks whether the copies are done. Never blocks.
    ///
    /// # Errors
    /// The copies failed, or their context was destroyed; the destination's content is undefined.
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
        // Long enough for a small copy to end while we spin, short enough not to starve other threads of the core.
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
