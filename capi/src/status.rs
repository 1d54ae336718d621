//! The status of a message.

use std::ffi::c_int;

/// Selects any sender, and is the source of no message.
pub(crate) const ANY_SOURCE: c_int = -1;
/// Selects any tag, and is the tag of no message.
pub(crate) const ANY_TAG: c_int = -1;

/// `cableway_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Status {
    pub(crate) source: c_int,
    pub(crate) tag: c_int,
    pub(crate) cancelled: c_int,
    pub(crate) error: c_int,
    pub(crate) bytes: u64,
}

impl Status {
    /// The status of a null request.
    pub(crate) const EMPTY: Status = Status { source: ANY_SOURCE, tag: ANY_TAG, cancelled: 0, error: 0, bytes: 0 };

    /// The status of a receive that was cancelled.
    pub(crate) const CANCELLED: Status = Status { cancelled: 1, ..Status::EMPTY };

    /// The status of a message that ended with an error.
    pub(crate) fn failed((source, tag, bytes): (c_int, c_int, u64), error: c_int) -> Status {
        Status { source, tag, cancelled: 0, error, bytes }
    }

    /// Stores the status, unless the program does not want it.
    ///
    /// # Safety
    /// The address is null, or valid for writes.
    #[inline]
    pub(crate) unsafe fn store(self, address: *mut Status) {
        if !address.is_null() {
            // SAFETY: the caller's promise.
            unsafe { address.write(self) }
        }
    }
}

impl From<cableway::Status> for Status {
    fn from(status: cableway::Status) -> Status {
        Status { source: status.source.cast_signed(), tag: status.tag, bytes: status.bytes, ..Status::EMPTY }
    }
}
