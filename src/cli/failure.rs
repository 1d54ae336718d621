//! The error of a command, with its exit code.

use std::process::ExitCode;

/// An error that ends a command, with the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Makes an error in the arguments or the environment: exit code 2, as clap uses.
    pub(crate) fn usage(message: impl ToString) -> Self {
        Failure { code: 2, message: message.to_string() }
    }

    /// Makes an error of a command with valid arguments.
    pub(crate) fn failed(code: u8, message: impl ToString) -> Self {
        Failure { code, message: message.to_string() }
    }

    /// Logs the error and returns the exit code.
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
