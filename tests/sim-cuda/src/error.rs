//! The driver's error codes.

use std::ffi::{CStr, c_int};

use cudarc::driver::sys::CUresult;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Error(pub(crate) c_int);

/// The result of every driver function.
pub(crate) type Outcome<T = ()> = Result<T, Error>;

macro_rules! errors {
    ($($name:ident $result:ident $text:literal)*) => {
        // Every code has a name, because tests inject codes that no function here returns.
        #[allow(dead_code, reason = "some codes come from SIM_CUDA_FAIL only")]
        impl Error {
            $(pub(crate) const $name: Error = Error(CUresult::$result as c_int);)*
        }

        /// Code, name and text of each error.
        const NAMES: &[(c_int, &CStr, &CStr)] = &[
            (0, c"CUDA_SUCCESS", c"no error"),
            $((CUresult::$result as c_int, c_name(concat!(stringify!($result), "\0")), c_name(concat!($text, "\0"))),)*
        ];
    };
}

const fn c_name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

errors! {
    INVALID_VALUE CUDA_ERROR_INVALID_VALUE "invalid argument"
    OUT_OF_MEMORY CUDA_ERROR_OUT_OF_MEMORY "out of memory"
    NOT_INITIALIZED CUDA_ERROR_NOT_INITIALIZED "initialization error"
    DEINITIALIZED CUDA_ERROR_DEINITIALIZED "driver shutting down"
    NO_DEVICE CUDA_ERROR_NO_DEVICE "no CUDA-capable device is detected"
    INVALID_DEVICE CUDA_ERROR_INVALID_DEVICE "invalid device ordinal"
    INVALID_CONTEXT CUDA_ERROR_INVALID_CONTEXT "invalid device context"
    MAP_FAILED CUDA_ERROR_MAP_FAILED "mapping of buffer object failed"
    ALREADY_MAPPED CUDA_ERROR_ALREADY_MAPPED "resource already mapped"
    NOT_MAPPED CUDA_ERROR_NOT_MAPPED "resource not mapped"
    ECC_UNCORRECTABLE CUDA_ERROR_ECC_UNCORRECTABLE "uncorrectable ECC error encountered"
    PEER_ACCESS_UNSUPPORTED CUDA_ERROR_PEER_ACCESS_UNSUPPORTED "peer access is not supported between these two devices"
    OPERATING_SYSTEM CUDA_ERROR_OPERATING_SYSTEM "OS call failed or operation not supported on this OS"
    INVALID_HANDLE CUDA_ERROR_INVALID_HANDLE "invalid resource handle"
    ILLEGAL_STATE CUDA_ERROR_ILLEGAL_STATE "the operation cannot be performed in the present state"
    INVALID_PTX CUDA_ERROR_INVALID_PTX "a PTX JIT compilation failed"
    NOT_FOUND CUDA_ERROR_NOT_FOUND "named symbol not found"
    FILE_NOT_FOUND CUDA_ERROR_FILE_NOT_FOUND "file not found"
    NOT_READY CUDA_ERROR_NOT_READY "device not ready"
    ILLEGAL_ADDRESS CUDA_ERROR_ILLEGAL_ADDRESS "an illegal memory access was encountered"
    PEER_ACCESS_ALREADY_ENABLED CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access is already enabled"
    PEER_ACCESS_NOT_ENABLED CUDA_ERROR_PEER_ACCESS_NOT_ENABLED "peer access has not been enabled"
    PRIMARY_CONTEXT_ACTIVE CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE "cannot set while device is active in this process"
    CONTEXT_IS_DESTROYED CUDA_ERROR_CONTEXT_IS_DESTROYED "context is destroyed"
    HOST_MEMORY_ALREADY_REGISTERED CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED "part or all of the requested memory range is already mapped"
    HOST_MEMORY_NOT_REGISTERED CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED "pointer does not correspond to a registered memory region"
    LAUNCH_FAILED CUDA_ERROR_LAUNCH_FAILED "unspecified launch failure"
    NOT_PERMITTED CUDA_ERROR_NOT_PERMITTED "operation not permitted"
    NOT_SUPPORTED CUDA_ERROR_NOT_SUPPORTED "operation not supported"
    STREAM_CAPTURE_UNSUPPORTED CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "operation not permitted when stream is capturing"
    STREAM_CAPTURE_INVALIDATED CUDA_ERROR_STREAM_CAPTURE_INVALIDATED "operation failed due to a previous error during capture"
    STREAM_CAPTURE_MERGE CUDA_ERROR_STREAM_CAPTURE_MERGE "operation would result in a merge of separate capture sequences"
    STREAM_CAPTURE_UNMATCHED CUDA_ERROR_STREAM_CAPTURE_UNMATCHED "capture was not ended in the same stream as it began"
    STREAM_CAPTURE_UNJOINED CUDA_ERROR_STREAM_CAPTURE_UNJOINED "capturing stream has unjoined work"
    STREAM_CAPTURE_ISOLATION CUDA_ERROR_STREAM_CAPTURE_ISOLATION "dependency created on uncaptured work in another stream"
    STREAM_CAPTURE_IMPLICIT CUDA_ERROR_STREAM_CAPTURE_IMPLICIT "operation would make the legacy stream depend on a capturing blocking stream"
    CAPTURED_EVENT CUDA_ERROR_CAPTURED_EVENT "operation not permitted on an event last recorded in a capturing stream"
    STREAM_CAPTURE_WRONG_THREAD CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD "attempt to terminate a thread-local capture sequence from another thread"
    UNKNOWN CUDA_ERROR_UNKNOWN "unknown error"
}

/// Returns the name and the text of `code`, if it is known.
pub(crate) fn describe(code: c_int) -> Option<(&'static CStr, &'static CStr)> {
    NAMES.iter().find(|row| row.0 == code).map(|row| (row.1, row.2))
}
