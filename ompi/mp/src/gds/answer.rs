//! What a call returns: 0 or an error number.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cableway_ompi_find::say;

/// Why a call failed, as text that says what to do.
#[derive(Debug)]
pub(super) enum Failure {
    /// An argument is wrong: `EINVAL`.
    Invalid(String),
    /// No device reaches the memory: `EFAULT`.
    Unreached(String),
    /// Only LibGDSync's network card can do it: `EOPNOTSUPP`.
    Unsupported(String),
    /// The driver or a message failed, or `mp_init` was not called: `EIO`.
    Failed(String),
}

impl Failure {
    pub(super) fn invalid(text: impl Into<String>) -> Failure {
        Failure::Invalid(text.into())
    }

    fn number(&self) -> c_int {
        match self {
            Failure::Invalid(_) => libc::EINVAL,
            Failure::Unreached(_) => libc::EFAULT,
            Failure::Unsupported(_) => libc::EOPNOTSUPP,
            Failure::Failed(_) => libc::EIO,
        }
    }

    fn text(&self) -> &str {
        match self {
            Failure::Invalid(text) | Failure::Unreached(text) => text,
            Failure::Unsupported(text) | Failure::Failed(text) => text,
        }
    }
}

/// Runs a call. Writes why it failed.
pub(super) fn answer(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            say(&format!("libcableway_mp: {name}: {}", failure.text()));
            failure.number()
        }
        Err(_) => libc::EIO,
    }
}

/// Checks flags that must be 0.
pub(super) fn no_flags(flags: c_int) -> Result<(), Failure> {
    match flags {
        0 => Ok(()),
        _ => Err(Failure::Invalid(format!("flags are {flags:#x}: they must be 0"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_answer_with_error_numbers_and_survive_panics() {
        let text = || "why".to_owned();
        for (failure, number) in [
            (Failure::Invalid(text()), libc::EINVAL),
            (Failure::Unreached(text()), libc::EFAULT),
            (Failure::Unsupported(text()), libc::EOPNOTSUPP),
            (Failure::Failed(text()), libc::EIO),
        ] {
            assert_eq!(answer("gds_call", || Err(failure)), number);
        }
        assert_eq!(answer("gds_call", || Ok(())), 0);
        assert_eq!(answer("gds_call", || panic!("within a call")), libc::EIO);
        assert!(no_flags(0).is_ok() && no_flags(1).is_err());
    }
}
