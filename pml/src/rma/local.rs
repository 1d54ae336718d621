//! The caller's memory of an operation.

use cableway_common_cuda::{DeviceAllocation, Devices, Location};
use cableway_datatype::Layout;

use crate::buffer::Buffer;
use crate::error::Error;

/// The caller's memory.
pub(super) enum Local {
    /// The source of a put.
    Put(Memory),
    /// The destination of a get.
    Get(Memory),
    /// Where the word before an atomic operation is stored: as many bytes as the ask's span.
    Atomic(usize),
}

/// Bytes on the host or a device: one run, or elements of a layout.
pub(super) struct Memory {
    /// Of the first byte, or that from which the layout's offsets count.
    address: usize,
    /// The bytes of data.
    pub(super) len: u64,
    /// The copies follow no default stream (`Buffer::settled`).
    pub(super) settled: bool,
    /// The allocation that holds it, if that is known.
    allocation: Option<DeviceAllocation>,
    in_host: bool,
    elements: Option<Box<(u64, Layout)>>,
}

impl Memory {
    /// Describes a buffer.
    #[inline]
    pub(super) fn of(buffer: Buffer<'_>) -> Result<Memory, Error> {
        let Some(layout) = buffer.layout() else {
            let (address, len) = (buffer.address().expose_provenance(), buffer.count());
            let (settled, allocation, in_host) = (buffer.is_settled(), buffer.allocation(), buffer.is_in_host());
            return Ok(Memory { address, len, settled, allocation, in_host, elements: None });
        };
        Memory::of_elements(buffer, layout)
    }

    fn of_elements(buffer: Buffer<'_>, layout: &Layout) -> Result<Memory, Error> {
        let (len, settled) = (buffer.packed_len()?, buffer.is_settled());
        let (address, elements) = match buffer.contiguous() {
            None => (buffer.address(), Some(Box::new((buffer.count(), layout.clone())))),
            Some((address, _)) => (address, None),
        };
        let (address, allocation, in_host) = (address.expose_provenance(), None, buffer.is_in_host());
        Ok(Memory { address, len, settled, allocation, in_host, elements })
    }

    /// Returns the address of the first byte if the memory is one run.
    #[inline]
    pub(super) fn run(&self) -> Option<*mut u8> {
        self.elements.is_none().then(|| std::ptr::with_exposed_provenance_mut(self.address))
    }

    /// Returns where the memory lies.
    #[inline]
    pub(super) fn classify(&self, devices: &Devices) -> Location {
        self.buffer().classify(devices)
    }

    #[inline]
    pub(super) fn is_on_device(&self, devices: &Devices) -> bool {
        self.len > 0 && self.classify(devices).on_device()
    }

    /// Describes the memory as a buffer.
    #[inline]
    pub(super) fn buffer(&self) -> Buffer<'_> {
        let address = std::ptr::with_exposed_provenance(self.address);
        let buffer = match &self.elements {
            None => Buffer::bytes(address, self.len).within(self.allocation),
            Some(elements) => Buffer::typed(address, elements.0, &elements.1),
        };
        let buffer = if self.in_host { buffer.in_host() } else { buffer };
        if self.settled { buffer.settled() } else { buffer }
    }
}
