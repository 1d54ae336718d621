//! Device memory that Cableway allocates for a program.

use std::sync::{Arc, OnceLock};

use super::Devices;
use crate::context::Primary;
use crate::driver::{Allocated, Driver, Failure, FailureKind};
use crate::error::DeviceError;
use crate::location::{BufferKind, DeviceAllocation, DeviceIndex, Location};

/// An allocation in a device's primary context, which it keeps active. Dropping it frees the memory.
///
/// The driver must be initialised: by the program itself, or by [`Devices::initialise`].
pub struct DeviceBuffer {
    context: Arc<Primary>,
    memory: Allocated,
    devices: Devices,
    len: usize,
    /// The answer of the driver, once it does not change any more.
    allocation: OnceLock<DeviceAllocation>,
}

impl DeviceBuffer {
    /// Allocates `len` bytes, whose content is undefined.
    ///
    /// # Errors
    /// There is no driver or no such device, the length is 0, memory is exhausted, or the device does not support the
    /// kind.
    pub fn new(devices: &Devices, device: DeviceIndex, kind: BufferKind, len: usize) -> Result<Self, DeviceError> {
        let object = || format!("{len} bytes of {kind:?} memory on device {}", device.0);
        let platform = devices.platform_of(device).ok_or_else(|| DeviceError::no_driver("allocate", object()))?;
        if len == 0 {
            let reason = "an allocation cannot be empty".to_owned();
            return Err(DeviceError { call: "allocate", object: object(), reason });
        }
        let context = platform.primary(device)?;
        let made = context.allocate(kind, len);
        let memory = made.map_err(|failure| context.driver.error(failure, object()))?;
        Ok(DeviceBuffer { context, memory, devices: devices.clone(), len, allocation: OnceLock::new() })
    }

    /// Returns the address of the first byte. The CPU may access only [`BufferKind::Pinned`] and
    /// [`BufferKind::Managed`] memory.
    pub fn as_device_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.memory.address as usize)
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an allocation is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the kind of its allocation.
    pub fn kind(&self) -> BufferKind {
        self.memory.kind
    }

    /// Returns its location as the driver reports it.
    pub fn location(&self) -> Location {
        self.devices.classify(self.as_device_ptr(), self.len)
    }

    /// Returns its allocation, so that the driver need not be asked again where the memory lies. `None` for memory that is
    /// not [`BufferKind::Device`], and while a capture hides something.
    pub fn allocation(&self) -> Option<DeviceAllocation> {
        if self.memory.kind != BufferKind::Device {
            return None;
        }
        if let Some(known) = self.allocation.get() {
            return Some(*known);
        }
        let found = self.devices.allocation_of(self.as_device_ptr(), self.len)?;
        Some(*self.allocation.get_or_init(|| found))
    }

    /// Copies host memory into the buffer, from byte `offset` on. `source` may be written again on return. From
    /// pageable memory the bytes may arrive later: as after a program's own `cudaMemcpy`, the rest is ordered in the
    /// legacy default stream. In [`BufferKind::Pinned`] memory they have arrived.
    ///
    /// # Errors
    /// The range does not lie in the buffer, or the driver refused.
    pub fn copy_from_host(&mut self, offset: usize, source: &[u8]) -> Result<(), DeviceError> {
        self.check("copy_from_host", offset, source.len())?;
        // SAFETY: the range was checked, and the slice has as many bytes.
        self.with(source.len(), |driver| unsafe {
            driver.write(self.as_device_ptr().wrapping_add(offset), source.as_ptr(), source.len())?;
            self.settle(driver)
        })
    }

    /// Copies bytes from `offset` on to host memory. The copy is complete on return.
    ///
    /// # Errors
    /// As [`copy_from_host`](Self::copy_from_host).
    pub fn copy_to_host(&self, offset: usize, destination: &mut [u8]) -> Result<(), DeviceError> {
        self.check("copy_to_host", offset, destination.len())?;
        // SAFETY: as above.
        self.with(destination.len(), |driver| unsafe {
            driver.read(destination.as_mut_ptr(), self.as_device_ptr().wrapping_add(offset), destination.len())
        })
    }

    /// Sets every byte, as `cudaMemset` does: ordered in the legacy default stream, and perhaps not complete on return.
    ///
    /// # Errors
    /// The driver refused.
    pub fn fill(&mut self, byte: u8) -> Result<(), DeviceError> {
        self.with(self.len, |driver| {
            // SAFETY: the whole allocation.
            unsafe { driver.fill(self.as_device_ptr(), byte, self.len) }?;
            self.settle(driver)
        })
    }

    /// Makes a driver call for `bytes` of the buffer, in its context.
    fn with(&self, bytes: usize, call: impl FnOnce(&dyn Driver) -> Result<(), Failure>) -> Result<(), DeviceError> {
        let driver = self.context.driver;
        let done = self.context.enter().and_then(|_scope| call(driver));
        let object = || format!("{bytes} of {} bytes of {:?} memory", self.len, self.kind());
        done.map_err(|failure| driver.error(failure, object()))
    }

    /// Waits for writes if the CPU can access the memory. Otherwise the default stream's order suffices.
    fn settle(&self, driver: &dyn Driver) -> Result<(), Failure> {
        match self.kind() {
            BufferKind::Pinned => driver.synchronise(driver.default_stream()),
            _ => Ok(()),
        }
    }

    fn check(&self, call: &'static str, offset: usize, len: usize) -> Result<(), DeviceError> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let object = format!("{len} bytes at offset {offset}");
        Err(DeviceError { call, object, reason: format!("the buffer has {} bytes", self.len) })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let driver = self.context.driver;
        // SAFETY: allocated in this context and freed once; device work on it is the owner's to have finished.
        match self.context.enter().and_then(|_scope| unsafe { driver.free_kind(&self.memory) }) {
            Ok(()) => {}
            // A device reset has freed the memory.
            Err(failure) if failure.context_gone() || failure.kind == FailureKind::InvalidValue => {}
            Err(failure) => log::warn!("freeing {:?} memory: {}", self.kind(), driver.reason(failure)),
        }
    }
}

impl std::fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("kind", &self.kind())
            .field("address", &self.as_device_ptr())
            .field("len", &self.len)
            .finish()
    }
}
