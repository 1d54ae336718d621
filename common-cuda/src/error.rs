//! Errors of devices.

/// The failure of an operation on a device.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call} failed on {object}: {reason}")]
#[non_exhaustive]
pub struct DeviceError {
    /// The driver's call.
    pub call: &'static str,
    /// The buffer, device or context concerned.
    pub object: String,
    /// The driver's own name for the error, and the remedy if one is known.
    pub reason: String,
}

/// The call in errors about kernels that are missing or found no room on the device.
pub(crate) const KERNEL: &str = "a kernel";

impl DeviceError {
    /// Checks whether the operation failed only because no kernel could do the work now. No part of it is under way,
    /// and another mechanism may do it.
    pub fn wants_kernel(&self) -> bool {
        self.call == KERNEL
    }

    /// Returns the error of a call that needs a driver in a process without one.
    pub(crate) fn no_driver(call: &'static str, object: impl Into<String>) -> Self {
        DeviceError { call, object: object.into(), reason: "no device driver is loaded".to_owned() }
    }
}
