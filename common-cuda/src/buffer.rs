//! Device memory that a program allocates through us.

use crate::devices::Devices;
use crate::error::DeviceError;
use crate::location::{DeviceIndex, Location};
use crate::vendor::VendorBuffer;

/// How device memory is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// As `cudaMalloc`.
    Device,
    /// From the device's default stream-ordered pool, as `cudaMallocAsync`.
    Pool,
    /// From a pool of ours on the device that was made to be shared with other processes by file descriptor.
    PoolShared,
    /// Virtual memory management: an address range with physical memory mapped into it, which was made to be shared with
    /// other processes by file descriptor where the device can do that.
    Vmm,
    /// The same, not made to be shared.
    VmmPrivate,
    /// The same, made to be shared, of as many pieces of physical memory as there can be.
    VmmPieces,
    /// Managed memory, as `cudaMallocManaged`.
    Managed,
    /// Page-locked host memory, as `cudaMallocHost`.
    Pinned,
}

impl BufferKind {
    /// Every kind.
    pub const ALL: [BufferKind; 8] = [
        Self::Device,
        Self::Pool,
        Self::PoolShared,
        Self::Vmm,
        Self::VmmPrivate,
        Self::VmmPieces,
        Self::Managed,
        Self::Pinned,
    ];
}

/// An allocation in a device's primary context, which it keeps active. Freed by dropping.
///
/// The driver must be initialised: by the program itself, or by [`Devices::initialise`].
pub struct DeviceBuffer {
    inner: Box<dyn VendorBuffer>,
    devices: Devices,
    len: usize,
    kind: BufferKind,
}

impl DeviceBuffer {
    /// Allocates `len` bytes, whose content is undefined.
    ///
    /// # Errors
    /// No driver, no such device, a length of 0, not enough memory, or a kind that the device does not have.
    pub fn new(devices: &Devices, device: DeviceIndex, kind: BufferKind, len: usize) -> Result<Self, DeviceError> {
        let object = || format!("{len} bytes of {kind:?} memory on device {}", device.0);
        let vendor = devices.vendor().ok_or_else(|| DeviceError::no_driver("allocate", object()))?;
        if len == 0 {
            let reason = "an allocation cannot be empty".to_owned();
            return Err(DeviceError { call: "allocate", object: object(), reason });
        }
        Ok(DeviceBuffer { inner: vendor.allocate(device, kind, len)?, devices: devices.clone(), len, kind })
    }

    /// The first byte's address. Only of [`BufferKind::Pinned`] and [`BufferKind::Managed`] may the CPU touch it.
    pub fn as_device_ptr(&self) -> *mut u8 {
        self.inner.address()
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "an allocation is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// How it was allocated.
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    /// What the driver says about it.
    pub fn location(&self) -> Location {
        self.devices.classify(self.as_device_ptr(), self.len)
    }

    /// Copies host memory into it, from byte `offset` on. Returns when `source` may be written again, which for
    /// ordinary memory can be *before* the bytes have arrived: the rest of the way is ordered in the legacy default
    /// stream only, as after a program's own `cudaMemcpy`. In [`BufferKind::Pinned`] memory they have arrived.
    ///
    /// # Errors
    /// The range does not lie in the buffer, or the driver refused.
    pub fn copy_from_host(&mut self, offset: usize, source: &[u8]) -> Result<(), DeviceError> {
        self.check("copy_from_host", offset, source.len())?;
        // SAFETY: the range was checked, and the slice has as many bytes.
        unsafe { self.inner.write(offset, source.as_ptr(), source.len()) }
    }

    /// Copies bytes from `offset` on to host memory; done when it returns.
    ///
    /// # Errors
    /// As [`copy_from_host`](Self::copy_from_host).
    pub fn copy_to_host(&self, offset: usize, destination: &mut [u8]) -> Result<(), DeviceError> {
        self.check("copy_to_host", offset, destination.len())?;
        // SAFETY: as above.
        unsafe { self.inner.read(offset, destination.as_mut_ptr(), destination.len()) }
    }

    /// Sets every byte, as `cudaMemset`: ordered in the legacy default stream, perhaps not done when it returns.
    ///
    /// # Errors
    /// The driver refused.
    pub fn fill(&mut self, byte: u8) -> Result<(), DeviceError> {
        self.inner.fill(byte)
    }

    fn check(&self, call: &'static str, offset: usize, len: usize) -> Result<(), DeviceError> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let object = format!("{len} bytes at offset {offset}");
        Err(DeviceError { call, object, reason: format!("the buffer has {} bytes", self.len) })
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("kind", &self.kind)
            .field("address", &self.as_device_ptr())
            .field("len", &self.len)
            .finish()
    }
}
