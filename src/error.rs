//! What can go wrong in a program that uses the library.

use std::fmt;

use cableway_base::{ParameterError, Rank};
use cableway_btl::ModexError;
use cableway_pml::Buffer;

use crate::selector::{Sender, Tag};

/// Why an operation of the library failed; [`kind`](Error::kind) tells which way.
///
/// One pointer wide, so that what a small message returns stays in registers.
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// The ways in which operations of the library fail.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A parameter is unknown or its value makes no sense.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The parameter `btl` names a transport that does not exist, or a transport could not be set up.
    #[error(transparent)]
    Transport(#[from] cableway_transports::Error),
    /// The processes of the job did not find each other.
    #[error(transparent)]
    Modex(#[from] ModexError),
    /// The engine could not do what no single message is about.
    #[error(transparent)]
    Engine(#[from] cableway_pml::Error),
    /// A message failed.
    #[error("{operation}: {source}")]
    Message {
        /// What was to be done with whom.
        operation: Operation,
        /// Why it was not.
        source: cableway_pml::Error,
    },
    /// The device's driver refused or failed.
    #[error(transparent)]
    Device(#[from] cableway_common_cuda::DeviceError),
    /// A datatype that cannot be.
    #[error(transparent)]
    Datatype(#[from] cableway_datatype::Error),
    /// A description of a buffer does not fit its memory.
    #[error("the buffer does not fit: {0}")]
    BadBuffer(String),
    /// The system refused a resource.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl<K: Into<ErrorKind>> From<K> for Error {
    #[cold]
    fn from(kind: K) -> Self {
        Error(Box::new(kind.into()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The engine's reason, where it is one.
    pub fn engine_error(&self) -> Option<&cableway_pml::Error> {
        match self.kind() {
            ErrorKind::Engine(source) | ErrorKind::Message { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A message as an error names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// `send`, `receive`, `probe`.
    pub verb: &'static str,
    /// The other rank, in the communicator's count; none for any.
    pub peer: Option<Rank>,
    /// The tag; none for any.
    pub tag: Option<i32>,
    /// Bytes of the buffer.
    pub bytes: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let preposition = if self.verb == "send" { "to" } else { "from" };
        f.write_str(self.verb)?;
        if self.verb != "probe" {
            write!(f, " of {} bytes", self.bytes)?;
        }
        write!(f, " {preposition} ")?;
        match self.peer {
            Some(peer) => write!(f, "rank {peer}")?,
            None => f.write_str("any rank")?,
        }
        match self.tag {
            Some(tag) => write!(f, ", tag {tag}"),
            None => f.write_str(", any tag"),
        }
    }
}

impl Operation {
    /// None yet.
    pub(crate) const NONE: Operation = Operation { verb: "", peer: None, tag: None, bytes: 0 };

    pub(crate) fn send(buffer: &Buffer<'_>, to: Rank, tag: i32) -> Self {
        Operation { verb: "send", peer: Some(to), tag: Some(tag), bytes: bytes(buffer) }
    }

    pub(crate) fn receive(buffer: &Buffer<'_>, from: Sender, tag: Tag) -> Self {
        Operation { verb: "receive", peer: from.rank(), tag: tag.tag(), bytes: bytes(buffer) }
    }

    pub(crate) fn probe(from: Sender, tag: Tag) -> Self {
        Operation { verb: "probe", peer: from.rank(), tag: tag.tag(), bytes: 0 }
    }

    /// The error of this operation.
    #[cold]
    pub(crate) fn failed(self, source: cableway_pml::Error) -> Error {
        ErrorKind::Message { operation: self, source }.into()
    }
}

/// A length that 64 bits do not hold is refused by the engine; here it only is to be named.
fn bytes(buffer: &Buffer<'_>) -> u64 {
    buffer.packed_len().unwrap_or(u64::MAX)
}
