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

impl DeviceError {
    /// Something was asked of devices in a process that has none.
    pub(crate) fn no_driver(call: &'static str, object: impl Into<String>) -> Self {
        DeviceError { call, object: object.into(), reason: "no device driver is loaded".to_owned() }
    }
}
