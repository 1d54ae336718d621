//! Copies of many blocks between a program's buffers and their images: all under way at the same time.

use cableway_common_cuda::{CopyBatch, Devices, Direction, Location, Order};

use crate::error::Error;

/// Copies that begin together.
pub(super) struct Copies<'a> {
    devices: &'a Devices,
    batches: Vec<Open>,
}

/// The copies from or to the memory of one context.
struct Open {
    at: Location,
    direction: Direction,
    order: Order,
    batch: CopyBatch,
}

impl<'a> Copies<'a> {
    pub(super) fn new(devices: &'a Devices) -> Self {
        Copies { devices, batches: Vec::new() }
    }

    /// Adds a copy of `len` bytes from a program's buffer to its image (`IN`), or back. Copies host memory at once.
    ///
    /// # Safety
    /// Both are allocated, and nobody else accesses them, until [`finish`](Self::finish) has returned. No two copies have
    /// a byte of their destinations in common.
    pub(super) unsafe fn add<const IN: bool>(
        &mut self,
        program: *mut u8,
        image: *mut u8,
        len: usize,
    ) -> Result<(), Error> {
        let at = self.devices.classify(program, len);
        let (to, from) = if IN { (image, program) } else { (program, image) };
        if !at.on_device() {
            // SAFETY: both are host memory, and the caller's promise covers the rest.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            return Ok(());
        }
        let direction = if IN { Direction::DeviceToHost } else { Direction::HostToDevice };
        let order = self.devices.order(&at);
        let of = |at: &Location| (at.device, at.context);
        let same = |open: &Open| (of(&open.at), open.direction, open.order) == (of(&at), direction, order);
        let index = match self.batches.iter().position(same) {
            Some(index) => index,
            None => {
                let mut batch = self.devices.batch(&at, direction, order)?;
                batch.page_locked();
                self.batches.push(Open { at, direction, order, batch });
                self.batches.len() - 1
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.batches[index].batch.copy(to, from, len) };
        Ok(())
    }

    /// Begins all copies, and waits for them.
    pub(super) fn finish(self) -> Result<(), Error> {
        // Those under way are waited for, also after an error.
        let begun: Result<Vec<_>, _> = self.batches.into_iter().map(|open| open.batch.finish()).collect();
        begun?.into_iter().try_for_each(|copies| copies.wait())?;
        Ok(())
    }
}
