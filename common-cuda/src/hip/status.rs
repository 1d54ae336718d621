//! The library's status codes, `hipError_t`. Their values are the same in the releases 5.0 to 7.

use std::ffi::c_int;

use crate::driver::{Failure, FailureKind};

/// `hipErrorNotReady`.
pub(super) const NOT_READY: c_int = 600;

/// `hipErrorStreamCaptureImplicit`: a capture in some thread prevents the use of the default stream.
pub(super) const CAPTURE_ELSEWHERE: c_int = 906;

/// What `hipInit` returns without a device: `hipErrorNoDevice`, and of 5.2 on a machine without a card
/// `hipErrorInvalidDevice`.
pub(super) const NO_DEVICE: [c_int; 2] = [100, 101];

/// The codes that other modules distinguish.
const KINDS: [(c_int, FailureKind); 19] = [
    // hipErrorInvalidValue, hipErrorOutOfMemory, hipErrorNotInitialized, hipErrorDeinitialized
    (1, FailureKind::InvalidValue),
    (2, FailureKind::OutOfMemory),
    (3, FailureKind::NotInitialised),
    (4, FailureKind::Deinitialised),
    // hipErrorInvalidDevicePointer
    (17, FailureKind::InvalidValue),
    // hipErrorNoDevice: with no device there is no device memory either.
    (100, FailureKind::NotInitialised),
    // hipErrorInvalidDevice
    (101, FailureKind::NotSupported),
    // hipErrorInvalidContext
    (201, FailureKind::InvalidHandle),
    // hipErrorNoBinaryForGpu: no code object of a module is for the device.
    (209, FailureKind::NotSupported),
    // hipErrorPeerAccessUnsupported
    (217, FailureKind::NotSupported),
    // hipErrorInvalidHandle
    (400, FailureKind::InvalidHandle),
    // hipErrorNotFound: hipMemGetAddressRange knows no allocation.
    (500, FailureKind::InvalidValue),
    // hipErrorContextIsDestroyed: a stream or event is destroyed, as hipDeviceReset does.
    (709, FailureKind::ContextDestroyed),
    // hipErrorHostMemoryAlreadyRegistered, hipErrorHostMemoryNotRegistered
    (712, FailureKind::AlreadyRegistered),
    (713, FailureKind::NotRegistered),
    // hipErrorNotSupported
    (801, FailureKind::NotSupported),
    // hipErrorStreamCaptureUnsupported
    (900, FailureKind::Capturing),
    // hipErrorStreamCaptureImplicit
    (CAPTURE_ELSEWHERE, FailureKind::DefaultStreamCaptured),
    // hipErrorRuntimeMemory
    (1052, FailureKind::OutOfMemory),
];

/// Returns the failure of a call that returned `code`, which is not success.
pub(super) fn failure(call: &'static str, code: c_int) -> Failure {
    let kind = KINDS.iter().find(|(known, _)| *known == code).map_or(FailureKind::Other, |(_, kind)| *kind);
    Failure { call, kind, code }
}

/// Converts the return value of a query.
#[inline]
pub(super) fn is_done(answer: Result<(), Failure>) -> Result<bool, Failure> {
    match answer {
        Ok(()) => Ok(true),
        Err(Failure { code: NOT_READY, .. }) => Ok(false),
        Err(failure) => Err(failure),
    }
}
