//! Runs programs with a time limit.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::error::Error;

/// The time limit of a program in seconds.
const LIMIT: &str = "120";

/// Makes a command that is ended after [`LIMIT`]. The caller adds arguments and variables.
pub(crate) fn bounded(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", LIMIT]).arg(program).stdin(Stdio::null());
    command
}

/// Runs the command and returns its standard output.
///
/// # Errors
///
/// The command cannot be started, or it fails.
pub(crate) fn output_of(command: &mut Command) -> Result<String, Error> {
    let shown = shown(command);
    let output = command
        .output()
        .map_err(|source| Error::Start { program: command.get_program().to_string_lossy().into_owned(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Failed { command: shown, status: output.status.to_string(), said })
}

/// Returns whether there is a program of this name in a folder of `PATH`.
pub(crate) fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Formats the command as a user would type it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Writes numbers with commas between them, as programs read sizes and windows.
pub(crate) fn list(numbers: impl IntoIterator<Item = u64>) -> String {
    numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}
