//! A call of a driver that failed, in terms that hold for every vendor.

use std::ffi::c_int;

/// A failed call. [`Driver::reason`](super::Driver::reason) describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) kind: FailureKind,
    /// The vendor's own code; negative if this side of the driver has found the failure.
    pub(crate) code: c_int,
}

/// The meaning of a failure to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The loaded library does not have the function.
    Missing,
    /// The device or the machine does not support it, or does not permit it.
    NotSupported,
    /// The driver refuses an argument.
    InvalidValue,
    OutOfMemory,
    /// The driver is not initialised.
    NotInitialised,
    /// The driver is shutting down, with its process.
    Deinitialised,
    /// The context is destroyed.
    ContextDestroyed,
    /// There is no such context, stream or event, or it is not of the current context.
    InvalidHandle,
    /// The calling thread captures a stream, and the call is unsafe in a capture.
    Capturing,
    /// A capture in some thread forbids to use the default stream.
    DefaultStreamCaptured,
    AlreadyRegistered,
    NotRegistered,
    /// No kernel can be launched, or none has found room on its device.
    NoKernel,
    Other,
}

impl Failure {
    pub(crate) const NO_KERNEL: Failure = Failure { call: crate::error::KERNEL, kind: FailureKind::NoKernel, code: -2 };

    /// The library lacks a function.
    pub(crate) const fn missing(call: &'static str) -> Failure {
        Failure { call, kind: FailureKind::Missing, code: -1 }
    }

    /// The context in which something was to be called is gone.
    pub(crate) const CONTEXT_DESTROYED: Failure =
        Failure { call: "enter_context", kind: FailureKind::ContextDestroyed, code: -3 };

    /// A failure that this side of the driver has found.
    pub(crate) const fn found(call: &'static str, kind: FailureKind) -> Failure {
        Failure { call, kind, code: -4 }
    }

    /// Checks whether this side of the driver found the failure, so that no vendor's code describes it.
    pub(crate) fn is_found_here(self) -> bool {
        self.code < 0
    }

    /// Checks whether the same call will fail again on this machine.
    pub(crate) fn is_permanent(self) -> bool {
        matches!(self.kind, FailureKind::Missing | FailureKind::NotSupported | FailureKind::InvalidValue)
    }

    /// Checks whether the context or the whole driver is gone. Then nothing is left to clean up in it.
    pub(crate) fn context_gone(self) -> bool {
        matches!(self.kind, FailureKind::Deinitialised | FailureKind::ContextDestroyed | FailureKind::InvalidHandle)
    }
}
