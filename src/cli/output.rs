//! Printing of results.

use std::io::Write;

use super::Failure;

/// Writes `text` to the standard output.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::failed(1, format!("printing results: {error}")))
}
