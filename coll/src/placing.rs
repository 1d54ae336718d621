//! Decides where a rank works on its data: in host memory, or in the memory of a device.
//!
//! A rank decides this for itself. Messages carry data between any two kinds of memory, so the other ranks need not
//! know.

use std::cell::RefCell;

use cableway_common_cuda::{Devices, Element, Location};

use crate::call::{Memory, Operands};
use crate::plan::Known;

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

/// Where an operand of a reduction lies.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) address: usize,
    pub(crate) bytes: u64,
}

/// What the decision depends on.
pub(crate) struct Placing<'a> {
    pub(crate) devices: &'a Devices,
    /// Smaller reductions are made by the host, unless processes access each other's memory.
    pub(crate) device_limit: u64,
    /// False if no device memory is left for scratch memory.
    pub(crate) on_devices: bool,
    /// Memory of the call that was located.
    pub(crate) known: RefCell<Known>,
}

impl Placing<'_> {
    /// Locates memory. Returns also whether it is device memory of one allocation.
    fn locate(&self, address: usize, len: usize) -> (Location, bool) {
        if let Some(location) = self.known.borrow().find(address, len) {
            return (location, true);
        }
        let pointer = std::ptr::with_exposed_provenance(address);
        let location = self.devices.classify(pointer, len);
        let whole = location.on_device() && self.devices.one_allocation(&location, pointer, len);
        if whole {
            self.known.borrow_mut().add(address, len, location);
        }
        (location, whole)
    }

    /// Locates the blocks of a call together, if they lie in one allocation.
    pub(crate) fn locate_all(&self, blocks: &[Memory<'_>]) {
        if !self.on_devices || !self.devices.expected() {
            return;
        }
        let mut all: Option<(usize, usize)> = None;
        for memory in blocks {
            if memory.packed_len() == 0 {
                continue;
            }
            let Some((address, len)) = memory.span() else { return };
            let Some(end) = address.checked_add(len) else { return };
            all = Some(all.map_or((address, end), |(first, last)| (first.min(address), last.max(end))));
        }
        if let Some((first, last)) = all {
            self.locate(first, last - first);
        }
    }

    /// Returns the kind of memory that a call's memory has.
    pub(crate) fn beside(&self, memory: &Memory<'_>) -> Working {
        if !self.on_devices || !self.devices.expected() {
            return Working::Host;
        }
        let location = memory.span().map(|(address, len)| self.locate(address, len).0).filter(Location::on_device);
        location.map_or(Working::Host, Working::Device)
    }

    /// Decides where a reduction works. The output is `None` if this rank gets none. The host reduces less than `least`
    /// bytes.
    pub(crate) fn reduction(&self, call: &Operands, input: Span, output: Option<Span>, least: u64) -> Working {
        if !self.on_devices || !self.devices.expected() || input.bytes < least {
            return Working::Host;
        }
        let on_device = |span: Span| Some(self.locate(span.address, span.bytes as usize).0).filter(Location::on_device);
        match output.and_then(on_device).or_else(|| on_device(input)) {
            Some(at) if self.devices.can_reduce(&at, call.operation, call.element) => Working::Device(at),
            _ => Working::Host,
        }
    }

    /// Checks whether a reduction that works there can read and write an operand where it is.
    pub(crate) fn is_usable(&self, working: &Working, Span { address, bytes }: Span, element: Element) -> bool {
        let (location, whole) = self.locate(address, bytes as usize);
        match working {
            Working::Host => !location.on_device(),
            Working::Device(at) => {
                whole
                    && location.device == at.device
                    && location.context == at.context
                    && address.is_multiple_of(element.alignment())
            }
        }
    }
}
