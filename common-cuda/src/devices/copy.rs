//! Copies between any two kinds of memory.

use super::Devices;
use crate::copies::{CopyBatch, Start};
use crate::copy::{Direction, Order};
use crate::error::DeviceError;
use crate::location::Location;

impl Devices {
    /// Begins copies in the context of `at`, the device side's location.
    ///
    /// # Errors
    /// `at` is host memory, or its context is destroyed. [`CopyBatch::finish`] reports that the calling thread captures
    /// a graph; a message cannot be part of a graph.
    pub fn batch(&self, at: &Location, direction: Direction, order: Order) -> Result<CopyBatch, DeviceError> {
        let platform = self.need_at(at, "batch", || format!("{at:?}"))?;
        let queue = platform.queue(at)?;
        platform.registrations.settle(&queue.workspace.context);
        Ok(queue.batch(Start { at: *at, direction, order }))
    }

    /// Copies `len` bytes between any two kinds of memory, after the default stream's work, and waits.
    ///
    /// # Safety
    /// Both ranges are allocated and do not overlap. Meanwhile no one writes the source or accesses the destination.
    ///
    /// # Errors
    /// The driver refused.
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_ordered(dst, src, len, |location| self.order(location)) }
    }

    /// Copies as [`copy`](Self::copy), but after no stream's work.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn copy_now(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.copy_ordered(dst, src, len, |_| Order::None) }
    }

    /// Copies as [`copy`](Self::copy), but after no stream's work while mappings are held: then the default stream may wait
    /// for one of the program's streams, which may wait for what a peer has asked for.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub unsafe fn copy_for_peer(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { if self.are_mappings_held() { self.copy_now(dst, src, len) } else { self.copy(dst, src, len) } }
    }

    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn copy_ordered(
        &self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        order: impl Fn(&Location) -> Order,
    ) -> Result<(), DeviceError> {
        let (to, from) = (self.classify(dst, len), self.classify(src, len));
        let Some((direction, at)) = Direction::between(&from, &to) else {
            // SAFETY: both are host memory, and the caller's promise covers the rest.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
            return Ok(());
        };
        if !self.one_vendor(&from, &to) {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_through_host((dst, &to), (src, &from), len, order) };
        }
        let start = Start { at, direction, order: order(&from).max(order(&to)) };
        // SAFETY: the caller's promise.
        match unsafe { self.copy_and_wait(start, dst, src, len) } {
            // A driver refuses pool memory and virtual memory of another device unless the owner granted access.
            // SAFETY: the caller's promise.
            Err(_) if direction == Direction::DeviceToDevice && from.device != to.device => unsafe {
                self.copy_through_host((dst, &to), (src, &from), len, order)
            },
            result => result,
        }
    }

    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn copy_and_wait(&self, start: Start, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        let mut batch = self.batch(&start.at, start.direction, start.order)?;
        // SAFETY: the caller's promise; the completion is waited for below.
        unsafe { batch.copy(dst, src, len) };
        batch.finish()?.wait()
    }

    /// # Safety
    /// As [`copy`](Self::copy). Both sides are device memory at the given locations.
    unsafe fn copy_through_host(
        &self,
        (dst, to): (*mut u8, &Location),
        (src, from): (*const u8, &Location),
        len: usize,
        order: impl Fn(&Location) -> Order,
    ) -> Result<(), DeviceError> {
        const PIECE: usize = 4 << 20;
        let mut piece = vec![0; len.min(PIECE)];
        let read = Start { at: *from, direction: Direction::DeviceToHost, order: order(from) };
        let write = Start { at: *to, direction: Direction::HostToDevice, order: order(to) };
        for offset in (0..len).step_by(PIECE) {
            let now = PIECE.min(len - offset);
            // SAFETY: within both ranges, and the piece is ours.
            unsafe {
                self.copy_and_wait(read, piece.as_mut_ptr(), src.add(offset), now)?;
                self.copy_and_wait(write, dst.add(offset), piece.as_ptr(), now)?;
            }
        }
        Ok(())
    }
}
