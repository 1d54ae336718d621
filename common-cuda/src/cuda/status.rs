//! The driver's status codes.

use std::ffi::c_int;

use cudarc::driver::sys::cudaError_enum as Code;

use crate::driver::{Failure, FailureKind};

/// Converts the return value of a driver function.
#[inline]
pub(super) fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure { call, kind: kind(code), code }) }
}

/// Converts the return value of a query.
#[inline]
pub(super) fn is_done(answer: Result<(), Failure>) -> Result<bool, Failure> {
    match answer {
        Ok(()) => Ok(true),
        Err(Failure { code, .. }) if code == Code::CUDA_ERROR_NOT_READY as c_int => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Checks whether a capture in some thread prevents the use of the default stream.
pub(super) fn is_capture_elsewhere(failure: Failure) -> bool {
    failure.code == Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as c_int
}

/// The codes that other modules distinguish.
const KINDS: [(Code, FailureKind); 15] = [
    (Code::CUDA_ERROR_INVALID_VALUE, FailureKind::InvalidValue),
    (Code::CUDA_ERROR_OUT_OF_MEMORY, FailureKind::OutOfMemory),
    (Code::CUDA_ERROR_NOT_INITIALIZED, FailureKind::NotInitialised),
    (Code::CUDA_ERROR_DEINITIALIZED, FailureKind::Deinitialised),
    (Code::CUDA_ERROR_INVALID_CONTEXT, FailureKind::InvalidHandle),
    (Code::CUDA_ERROR_INVALID_HANDLE, FailureKind::InvalidHandle),
    (Code::CUDA_ERROR_CONTEXT_IS_DESTROYED, FailureKind::ContextDestroyed),
    (Code::CUDA_ERROR_INVALID_DEVICE, FailureKind::NotSupported),
    (Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, FailureKind::NotSupported),
    (Code::CUDA_ERROR_NOT_PERMITTED, FailureKind::NotSupported),
    (Code::CUDA_ERROR_NOT_SUPPORTED, FailureKind::NotSupported),
    (Code::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, FailureKind::AlreadyRegistered),
    (Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, FailureKind::NotRegistered),
    (Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, FailureKind::Capturing),
    (Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, FailureKind::DefaultStreamCaptured),
];

fn kind(code: c_int) -> FailureKind {
    // Most queries about work under way return this.
    if code == Code::CUDA_ERROR_NOT_READY as c_int {
        return FailureKind::Other;
    }
    KINDS.iter().find(|(known, _)| *known as c_int == code).map_or(FailureKind::Other, |(_, kind)| *kind)
}
