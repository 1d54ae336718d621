//! Creation of a convertor's device side, at its first use.

use cableway_common_cuda::{Devices, Location};

use super::Convertor;
use super::device::DeviceSide;

/// The part of a convertor that moves device memory.
pub(super) enum Device {
    /// All of the buffer is host memory.
    None,
    /// The buffer is in one allocation, and the convertor has not packed or unpacked anything. A message that one copy
    /// transfers stays in this state.
    Unused(Devices),
    Used(Box<DeviceSide>),
}

impl Device {
    #[inline]
    pub(super) fn of(location: &Location, devices: &Devices) -> Device {
        if location.on_device() { Device::Unused(devices.clone()) } else { Device::None }
    }

    /// Returns the device side and creates it on first use. Returns none for host memory at `location`.
    pub(super) fn used(&mut self, location: &Location) -> Option<&mut DeviceSide> {
        if let Device::Unused(devices) = self {
            *self = DeviceSide::new(location, devices).map_or(Device::None, Device::Used);
        }
        match self {
            Device::Used(side) => Some(side),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn is_some(&self) -> bool {
        !matches!(self, Device::None)
    }

    #[inline]
    pub(super) fn is_mixed(&self) -> bool {
        matches!(self, Device::Used(side) if side.is_mixed())
    }
}

impl Convertor {
    /// Makes copies by a device follow no work of the default stream. The program's work on the buffer is done, and must not
    /// be asked for: a stream that waits for the message may hold up the default stream.
    pub fn follow_nothing(&mut self) {
        if let Some(device) = self.device.used(&self.location) {
            device.follow_nothing();
        }
    }
}
