//! Single copies between a message in device memory and packed bytes in host memory.

use cableway_common_cuda::{CopyBatch, DeviceError, Devices, Direction, Location, Order};

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
    pub(super) fn batch(&self, direction: Direction, order: Order) -> Result<CopyBatch<'a>, DeviceError> {
        self.devices.batch(self.location, direction, order)
    }

    /// Adds a copy from the message to the packed bytes.
    ///
    /// # Safety
    /// The copy's bytes on both sides are valid, the packed ones exclusively, until the batch's completion is done.
    pub(super) unsafe fn pack(&self, batch: &mut CopyBatch<'_>, copy: &Copy) -> Result<(), DeviceError> {
        let user = (self.message.at(copy.offset).cast_const(), copy.pitch as usize);
        // SAFETY: the caller's promise, for every row.
        unsafe {
            let packed = (self.packed.add(copy.packed as usize), copy.packed_pitch as usize);
            batch.copy_2d(packed, user, copy.width as usize, copy.rows as usize)
        }
    }

    /// Adds a copy from the packed bytes to the message.
    ///
    /// # Safety
    /// As [`pack`](Self::pack), with the message's bytes exclusively valid.
    pub(super) unsafe fn unpack(&self, batch: &mut CopyBatch<'_>, copy: &Copy) -> Result<(), DeviceError> {
        let user = (self.message.at(copy.offset), copy.pitch as usize);
        // SAFETY: the caller's promise, for every row.
        unsafe {
            let packed = (self.packed.add(copy.packed as usize).cast_const(), copy.packed_pitch as usize);
            batch.copy_2d(user, packed, copy.width as usize, copy.rows as usize)
        }
    }
}
