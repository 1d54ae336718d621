//! Single copies between a message in device memory and packed bytes in host memory.

use cableway_common_cuda::{CopyBatch, DeviceError, Devices, Direction, Location, Order, RowCopy};

use super::plan::Copy;
use crate::convertor::message::Message;

/// Copies between one allocation on a device and packed bytes in host memory.
pub(super) struct Copier<'a> {
    pub(super) devices: &'a Devices,
    pub(super) location: &'a Location,
    pub(super) message: &'a Message<'a>,
    pub(super) packed: *mut u8,
}

impl<'a> Copier<'a> {
    /// Begins copies in one direction.
    pub(super) fn batch(&self, direction: Direction, order: Order) -> Result<CopyBatch, DeviceError> {
        self.devices.batch(self.location, direction, order)
    }

    /// Adds a copy from the message to the packed bytes.
    ///
    /// # Safety
    /// The copy's bytes on both sides are valid, the packed ones exclusively, until the batch's completion is done.
    pub(super) unsafe fn pack(&self, batch: &mut CopyBatch, copy: &Copy) {
        let (dst_pitch, src_pitch) = (copy.packed_pitch as usize, copy.pitch as usize);
        let (src, width, rows) = (self.message.at(copy.offset), copy.width as usize, copy.rows as usize);
        // SAFETY: the caller's promise, for every row.
        unsafe {
            let dst = self.packed.add(copy.packed as usize);
            batch.copy_rows(RowCopy { dst, dst_pitch, src, src_pitch, width, rows });
        }
    }

    /// Adds a copy from the packed bytes to the message.
    ///
    /// # Safety
    /// As [`pack`](Self::pack), with the message's bytes exclusively valid.
    pub(super) unsafe fn unpack(&self, batch: &mut CopyBatch, copy: &Copy) {
        let (dst_pitch, src_pitch) = (copy.pitch as usize, copy.packed_pitch as usize);
        let (dst, width, rows) = (self.message.at(copy.offset), copy.width as usize, copy.rows as usize);
        // SAFETY: the caller's promise, for every row.
        unsafe {
            let src = self.packed.add(copy.packed as usize);
            batch.copy_rows(RowCopy { dst, dst_pitch, src, src_pitch, width, rows });
        }
    }
}
