//! What can go wrong on a device.

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

/// What was called where a kernel was needed and there was none, or no room for it.
pub(crate) const KERNEL: &str = "a kernel";

impl DeviceError {
    /// Whether it says only that no kernel could do the work now: none of it is under way any more, and it may be done in
    /// another way.
    pub fn wants_kernel(&self) -> bool {
        self.call == KERNEL
    }

    /// Something was asked of devices in a process that has none.
    pub(crate) fn no_driver(call: &'static str, object: impl Into<String>) -> Self {
        DeviceError { call, object: object.into(), reason: "no device driver is loaded".to_owned() }
    }
}
