//! Memory to send from and to receive into.

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceIndex, Devices};

/// Memory of a kind, or of the host.
pub enum Memory {
    Host(Vec<u8>),
    Device(DeviceBuffer),
}

impl Memory {
    pub fn new(devices: &Devices, kind: Option<BufferKind>, content: &[u8]) -> Self {
        match kind {
            None => Memory::Host(content.to_vec()),
            Some(kind) => {
                let mut buffer = DeviceBuffer::new(devices, DeviceIndex(0), kind, content.len().max(1)).unwrap();
                buffer.copy_from_host(0, content).unwrap();
                Memory::Device(buffer)
            }
        }
    }

    pub fn address(&mut self) -> *mut u8 {
        match self {
            Memory::Host(bytes) => bytes.as_mut_ptr(),
            Memory::Device(buffer) => buffer.as_device_ptr(),
        }
    }

    /// The first `len` bytes.
    pub fn read(&self, len: usize) -> Vec<u8> {
        match self {
            Memory::Host(bytes) => bytes[..len].to_vec(),
            Memory::Device(buffer) => {
                let mut bytes = vec![0; len];
                buffer.copy_to_host(0, &mut bytes).unwrap();
                bytes
            }
        }
    }
}
