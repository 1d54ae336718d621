//! Failed driver calls, in terms that hold for every vendor.

use std::ffi::c_int;

/// A failed call. [`Driver::reason`](super::Driver::reason) describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) kind: FailureKind,
    /// The vendor's own code; negative if Cableway detected the failure itself.
    pub(crate) code: c_int,
}

/// The meaning of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The loaded library lacks the function.
    Missing,
    /// The device or the machine does not support or permit it.
    NotSupported,
    /// The driver rejects an argument.
    InvalidValue,
    OutOfMemory,
    /// The driver is not initialised.
    NotInitialised,
    /// The driver is shutting down, with its process.
    Deinitialised,
    /// The context is destroyed.
    ContextDestroyed,
    /// The context, stream or event does not exist, or does not belong to the current context.
    InvalidHandle,
    /// The calling thread captures a stream, and the call is unsafe during a capture.
    Capturing,
    /// A capture in some thread forbids the use of the default stream.
    DefaultStreamCaptured,
    AlreadyRegistered,
    NotRegistered,
    /// No kernel can be launched, or no kernel has found room on its device.
    NoKernel,
    Other,
}

impl Failure {
    pub(crate) const NO_KERNEL: Failure = Failure { call: crate::error::KERNEL, kind: FailureKind::NoKernel, code: -2 };

    /// Returns the failure of a function that the library lacks.
    pub(crate) const fn missing(call: &'static str) -> Failure {
        Failure { call, kind: FailureKind::Missing, code: -1 }
    }

    /// Returns the failure of a call in a destroyed context.
    pub(crate) const CONTEXT_DESTROYED: Failure =
        Failure { call: "enter_context", kind: FailureKind::ContextDestroyed, code: -3 };

    /// Returns a failure that Cableway detected itself.
    pub(crate) const fn found(call: &'static str, kind: FailureKind) -> Failure {
        Failure { call, kind, code: -4 }
    }

    /// Checks whether Cableway detected the failure itself, so that no vendor code describes it.
    pub(crate) fn is_found_here(self) -> bool {
        self.code < 0
    }

    /// Checks whether the same call would always fail on this machine.
    pub(crate) fn is_permanent(self) -> bool {
        matches!(self.kind, FailureKind::Missing | FailureKind::NotSupported | FailureKind::InvalidValue)
    }

    /// Checks whether the context or the whole driver is gone, so that nothing needs to be cleaned up.
    pub(crate) fn context_gone(self) -> bool {
        matches!(self.kind, FailureKind::Deinitialised | FailureKind::ContextDestroyed | FailureKind::InvalidHandle)
    }
}
