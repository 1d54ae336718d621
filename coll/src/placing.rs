//! Decides where a rank works on its data: in host memory, or in the memory of a device.
//!
//! A rank decides this for itself. Messages carry data between any two kinds of memory, so the other ranks need not
//! know.

use cableway_common_cuda::{Devices, Element, Location};

use crate::call::{Memory, Operands};

/// Where a rank works.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Working {
    Host,
    /// In device memory like that at this location.
    Device(Location),
}

impl Working {
    /// Returns the first one that is a device.
    pub(crate) fn or(self, other: Working) -> Working {
        match self {
            Working::Host => other,
            Working::Device(_) => self,
        }
    }
}

/// What the decision depends on.
pub(crate) struct Placing<'a> {
    pub(crate) devices: &'a Devices,
    /// Smaller reductions are made by the host, unless processes access each other's memory.
    pub(crate) device_limit: u64,
    /// False if no device memory is left for scratch memory.
    pub(crate) on_devices: bool,
}

impl Placing<'_> {
    /// Returns the kind of memory that a call's memory has.
    pub(crate) fn beside(&self, memory: &Memory<'_>) -> Working {
        if !self.on_devices || !self.devices.expected() {
            return Working::Host;
        }
        let location = match memory.layout {
            Some(layout) => layout.classify(memory.address, memory.count, self.devices),
            None => self.devices.classify(memory.address, memory.count as usize),
        };
        if location.on_device() { Working::Device(location) } else { Working::Host }
    }

    /// Decides where a reduction works. The output is `None` if this rank gets none. The host reduces less than `least`
    /// bytes.
    pub(crate) fn reduction(&self, call: &Operands, (input, output): (usize, Option<usize>), least: u64) -> Working {
        let bytes = call.count * call.element.size() as u64;
        if !self.on_devices || !self.devices.expected() || bytes < least {
            return Working::Host;
        }
        let location =
            |address: usize| self.devices.classify(std::ptr::with_exposed_provenance(address), bytes as usize);
        let on_device = |address: usize| Some(location(address)).filter(Location::on_device);
        match output.and_then(on_device).or_else(|| on_device(input)) {
            Some(at) if self.devices.can_reduce(&at, call.operation, call.element) => Working::Device(at),
            _ => Working::Host,
        }
    }

    /// Checks whether a reduction that works there can read and write an operand where it is.
    pub(crate) fn is_usable(&self, working: &Working, address: usize, bytes: u64, element: Element) -> bool {
        let pointer = std::ptr::with_exposed_provenance(address);
        let location = self.devices.classify(pointer, bytes as usize);
        match working {
            Working::Host => !location.on_device(),
            Working::Device(at) => {
                location.on_device()
                    && location.device == at.device
                    && location.context == at.context
                    && address.is_multiple_of(element.alignment())
                    && self.devices.one_allocation(&location, pointer, bytes as usize)
            }
        }
    }
}
