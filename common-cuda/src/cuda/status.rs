//! The driver's status codes, kept as the integers that they are.

use std::ffi::c_int;

use cudarc::driver::sys::cudaError_enum as Code;

/// A call of the driver that did not succeed. [`Driver::error`](super::driver::Driver::error) makes it readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) code: c_int,
}

impl Failure {
    /// The loaded driver does not have the function.
    pub(crate) const MISSING: c_int = -1;

    /// No kernel could be launched, or none found room on its device.
    pub(crate) const NO_KERNEL: Failure = Failure { call: crate::error::KERNEL, code: -2 };

    pub(crate) const INVALID_VALUE: c_int = Code::CUDA_ERROR_INVALID_VALUE as c_int;
    pub(crate) const OUT_OF_MEMORY: c_int = Code::CUDA_ERROR_OUT_OF_MEMORY as c_int;
    pub(crate) const NOT_INITIALIZED: c_int = Code::CUDA_ERROR_NOT_INITIALIZED as c_int;
    pub(crate) const DEINITIALIZED: c_int = Code::CUDA_ERROR_DEINITIALIZED as c_int;
    pub(crate) const INVALID_CONTEXT: c_int = Code::CUDA_ERROR_INVALID_CONTEXT as c_int;
    pub(crate) const INVALID_HANDLE: c_int = Code::CUDA_ERROR_INVALID_HANDLE as c_int;
    pub(crate) const NOT_READY: c_int = Code::CUDA_ERROR_NOT_READY as c_int;
    pub(crate) const CONTEXT_IS_DESTROYED: c_int = Code::CUDA_ERROR_CONTEXT_IS_DESTROYED as c_int;
    pub(crate) const INVALID_DEVICE: c_int = Code::CUDA_ERROR_INVALID_DEVICE as c_int;
    pub(crate) const PEER_ACCESS_UNSUPPORTED: c_int = Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED as c_int;
    pub(crate) const NOT_PERMITTED: c_int = Code::CUDA_ERROR_NOT_PERMITTED as c_int;
    pub(crate) const NOT_SUPPORTED: c_int = Code::CUDA_ERROR_NOT_SUPPORTED as c_int;
    pub(crate) const ALREADY_REGISTERED: c_int = Code::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED as c_int;
    pub(crate) const NOT_REGISTERED: c_int = Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED as c_int;
    pub(crate) const CAPTURE_UNSUPPORTED: c_int = Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as c_int;
    pub(crate) const CAPTURE_IMPLICIT: c_int = Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as c_int;

    #[inline]
    pub(crate) fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
        if code == 0 { Ok(()) } else { Err(Failure { call, code }) }
    }

    /// Whether the same call will fail so again: what it asks for is not there, or not allowed, on this machine.
    pub(crate) fn is_for_good(self) -> bool {
        matches!(
            self.code,
            Self::MISSING
                | Self::INVALID_VALUE
                | Self::INVALID_DEVICE
                | Self::PEER_ACCESS_UNSUPPORTED
                | Self::NOT_PERMITTED
                | Self::NOT_SUPPORTED
        )
    }

    /// Whether it says that the context, or the whole driver, is no more: there is nothing left to clean up in it.
    pub(crate) fn context_gone(self) -> bool {
        matches!(
            self.code,
            Self::DEINITIALIZED | Self::INVALID_CONTEXT | Self::INVALID_HANDLE | Self::CONTEXT_IS_DESTROYED
        )
    }
}
