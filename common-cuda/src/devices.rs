//! The handle through which every other crate reaches device memory.

use std::sync::Arc;

use cableway_base::Parameters;

use crate::location::Location;
use crate::vendor::{CopyBatch, DeviceError, Direction, HostRegistration, Order, Vendor};

/// The devices of this process. Clones share one state; every method may be called from any thread.
#[derive(Clone, Default)]
pub struct Devices {
    vendor: Option<Arc<dyn Vendor>>,
}

impl Devices {
    /// No devices: every pointer is host memory.
    pub fn none() -> Self {
        Self::default()
    }

    /// Finds the driver. Never fails and creates nothing: without a driver it says one line at level info and is
    /// [`Devices::none`].
    pub fn open(_parameters: &Parameters) -> Self {
        Self::none()
    }

    /// Tells where `len` bytes at `address` live. A zero-length buffer is host memory and never queried.
    #[inline]
    pub fn classify(&self, address: *const u8, len: usize) -> Location {
        match &self.vendor {
            Some(vendor) if len != 0 => vendor.classify(address, len),
            _ => Location::HOST,
        }
    }

    /// Begins copies in the context of `at`, the device side's location.
    ///
    /// # Errors
    /// `at` is host memory, its context is gone, or the calling thread captures a graph (an MPI call within a capture
    /// is an error that says so).
    pub fn batch(&self, at: &Location, direction: Direction, order: Order) -> Result<CopyBatch<'_>, DeviceError> {
        let vendor = self.vendor.as_ref().ok_or_else(|| DeviceError {
            call: "batch",
            object: format!("{at:?}"),
            reason: "no device driver is loaded".to_owned(),
        })?;
        Ok(CopyBatch { inner: vendor.batch(at, direction, order)? })
    }

    /// Has `len` bytes at `address` registered with the driver once a device is in use: copies from and to them are
    /// then asynchronous and run at the speed of the link.
    ///
    /// # Safety
    /// The range stays mapped until the registration is dropped.
    pub unsafe fn register_host(&self, address: *mut u8, len: usize) -> HostRegistration {
        match &self.vendor {
            // SAFETY: the caller's promise is the vendor's precondition.
            Some(vendor) => unsafe { vendor.register_host(address, len) },
            None => HostRegistration { inner: None },
        }
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("driver", &self.vendor.is_some()).finish()
    }
}
