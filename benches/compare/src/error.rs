//! Errors of a measurement or of the whole report.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("'{command}' ended with {status}: {said}")]
    Failed { command: String, status: String, said: String },
    #[error("'{command}' printed no figure: {said}")]
    NoFigure { command: String, said: String },
    #[error("{0}")]
    Missing(String),
    #[error("{} figures are slower than a peer's:\n{}", .0.len(), .0.join("\n"))]
    Lost(Vec<String>),
    #[error("cannot draw: {0}")]
    Drawing(String),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}
