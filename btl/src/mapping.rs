//! Memory of a peer at addresses of this process.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// Shared memory at an address of this process. It is mapped until the last copy of this value is dropped.
#[derive(Clone)]
pub struct Mapping {
    address: NonNull<u8>,
    len: usize,
    /// Keeps the memory mapped.
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address, and a keeper that may be used and dropped anywhere. Accesses to the memory are unsafe.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Describes `len` bytes at `address`.
    ///
    /// # Safety
    /// The bytes can be read and written as long as the keeper lives. They fault in no case.
    pub unsafe fn new(address: NonNull<u8>, len: usize, keeper: Arc<dyn Any + Send + Sync>) -> Self {
        Mapping { address, len, _keeper: keeper }
    }

    /// Returns the first byte. Other processes may write the memory at any time.
    #[inline]
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({} bytes at {:p})", self.len, self.address)
    }
}

/// Device memory of a peer at an address that devices of this process access. It is mapped until this is dropped.
pub struct DeviceMapping {
    address: *mut u8,
    len: usize,
    /// Keeps the memory mapped.
    _keeper: Box<dyn Any + Send + Sync>,
}

// SAFETY: an address without permission to use it, and a keeper that may be used and dropped anywhere.
unsafe impl Send for DeviceMapping {}
// SAFETY: as above.
unsafe impl Sync for DeviceMapping {}

impl DeviceMapping {
    /// Describes `len` bytes at `address`, which stay mapped as long as the keeper lives.
    pub fn new(address: *mut u8, len: usize, keeper: Box<dyn Any + Send + Sync>) -> Self {
        DeviceMapping { address, len, _keeper: keeper }
    }

    /// Returns the first byte, for kernels and copies of the context that it was mapped for.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for DeviceMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMapping({} bytes at {:p})", self.len, self.address)
    }
}
