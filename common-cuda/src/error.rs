//! Errors of devices.

/// Why something on a device failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call} failed on {object}: {reason}")]
#[non_exhaustive]
pub struct DeviceError {
    /// The driver's call.
    pub call: &'static str,
    /// The buffer, device or context concerned.
    pub object: String,
    /// The driver's own name for the error, and what to do about it where that is known.
    pub reason: String,
}

/// The call in errors about missing kernels, or kernels without room on the device.
pub(crate) const KERNEL: &str = "a kernel";

impl DeviceError {
    /// Checks whether the only fault is that no kernel could do the work now. Nothing of it is under way, and another
    /// mechanism may do it.
    pub fn wants_kernel(&self) -> bool {
        self.call == KERNEL
    }

    /// Makes the error of a call that needs a driver in a process without one.
    pub(crate) fn no_driver(call: &'static str, object: impl Into<String>) -> Self {
        DeviceError { call, object: object.into(), reason: "no device driver is loaded".to_owned() }
    }
}
