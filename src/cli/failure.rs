//! Why a command fails, and its exit code.

use std::process::ExitCode;

/// Why a command ends with another exit code than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// What was typed, or the environment, cannot be meant: exit code 2, as clap's own complaints.
    pub(crate) fn usage(message: impl ToString) -> Self {
        Failure { code: 2, message: message.to_string() }
    }

    /// It was understood, and did not work.
    pub(crate) fn failed(code: u8, message: impl ToString) -> Self {
        Failure { code, message: message.to_string() }
    }

    /// Says what went wrong.
    pub(crate) fn report(self) -> ExitCode {
        log::error!("{}", self.message);
        ExitCode::from(self.code)
    }
}

impl From<cableway::Error> for Failure {
    fn from(error: cableway::Error) -> Self {
        Failure::failed(1, error)
    }
}
