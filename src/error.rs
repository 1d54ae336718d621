//! Errors of the library.

use std::fmt;

use cableway_base::{ParameterError, Rank};
use cableway_btl::ModexError;
use cableway_pml::{Buffer, Place};

use crate::selector::{Sender, Tag};

/// An error of the library. [`kind`](Error::kind) returns its kind.
///
/// An error is one pointer wide, so that the result of a small message stays in registers.
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// The kinds of errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No parameter has this name, or its value is invalid.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The parameter `btl` names an unknown transport, or a transport could not be opened.
    #[error(transparent)]
    Transport(#[from] cableway_transports::Error),
    /// The exchange of addresses with the other processes of the job failed.
    #[error(transparent)]
    Modex(#[from] ModexError),
    /// The engine failed in an operation other than a message.
    #[error(transparent)]
    Engine(#[from] cableway_pml::Error),
    /// A message failed.
    #[error("{operation}: {source}")]
    Message {
        /// The message.
        operation: Operation,
        /// Why it failed.
        source: cableway_pml::Error,
    },
    /// A collective operation failed.
    #[error("{operation}: {source}")]
    Collective {
        /// The operation.
        operation: Collective,
        /// Why it failed.
        source: cableway_coll::Error,
    },
    /// The arguments of a collective operation do not fit together. Nothing was sent.
    #[error("{operation}: {reason}")]
    BadCollective {
        /// The operation.
        operation: Collective,
        /// What does not fit.
        reason: String,
    },
    /// A call of the device driver failed.
    #[error(transparent)]
    Device(#[from] cableway_common_cuda::DeviceError),
    /// The arguments do not describe a valid datatype.
    #[error(transparent)]
    Datatype(#[from] cableway_datatype::Error),
    /// The description of a buffer does not fit its memory.
    #[error("the buffer does not fit: {0}")]
    BadBuffer(String),
    /// Work that is queued on a device, and uses the memory of a message, could not be waited for.
    #[error("the memory cannot be used yet: {0}")]
    DeviceOrder(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The error of the system.
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
    /// Returns the kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Returns the engine's error, if the engine caused this one.
    pub fn engine_error(&self) -> Option<&cableway_pml::Error> {
        match self.kind() {
            ErrorKind::Engine(source)
            | ErrorKind::Message { source, .. }
            | ErrorKind::Collective { source: cableway_coll::Error::Message(source), .. } => Some(source),
            _ => None,
        }
    }
}

/// The message that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// `send`, `receive`, `probe`, `put`, `get`, `atomic`, `wait for a signal`, `active message` or `landing` (of an active
    /// message's data).
    pub verb: &'static str,
    /// The other rank in the communicator, or that in the job for one-sided operations; `None` for any rank.
    pub peer: Option<Rank>,
    /// The tag; `None` for any tag, and for operations without one.
    pub tag: Option<i32>,
    /// The length of the buffer in bytes.
    pub bytes: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let preposition = match self.verb {
            "send" | "active message" | "put" => "to",
            "atomic" => "at",
            _ => "from",
        };
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
            None if matches!(self.verb, "active message" | "landing" | "put" | "get" | "atomic") => Ok(()),
            None => f.write_str(", any tag"),
        }
    }
}

/// The collective operation that an error is about, as this process called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collective {
    /// The name of the method, for example `allreduce`.
    pub name: &'static str,
    /// The root, if the operation has one.
    pub root: Option<Rank>,
    /// The length in bytes of this process's buffer, if the operation has one.
    pub bytes: Option<u64>,
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.bytes.map_or(Ok(()), |bytes| write!(f, " of {bytes} bytes"))?;
        self.root.map_or(Ok(()), |root| write!(f, ", root {root}"))
    }
}

impl Collective {
    /// Makes the error of this operation.
    #[cold]
    pub(crate) fn failed(self, source: cableway_coll::Error) -> Error {
        ErrorKind::Collective { operation: self, source }.into()
    }

    /// Makes the error of arguments that do not fit.
    #[cold]
    pub(crate) fn refused(self, reason: String) -> Error {
        ErrorKind::BadCollective { operation: self, reason }.into()
    }
}

impl Operation {
    /// The description of a request that has not been started.
    pub(crate) const NONE: Operation = Operation { verb: "", peer: None, tag: None, bytes: 0 };

    pub(crate) fn send(buffer: &Buffer<'_>, to: Rank, tag: i32) -> Self {
        Operation { verb: "send", peer: Some(to), tag: Some(tag), bytes: bytes(buffer) }
    }

    pub(crate) fn receive(buffer: &Buffer<'_>, from: Sender, tag: Tag) -> Self {
        Operation { verb: "receive", peer: from.rank(), tag: tag.tag(), bytes: bytes(buffer) }
    }

    pub(crate) fn one_sided(verb: &'static str, at: &Place<'_>, bytes: u64) -> Self {
        Operation { verb, peer: Some(at.key.rank()), tag: None, bytes }
    }

    pub(crate) fn post(buffer: &Buffer<'_>, to: Rank) -> Self {
        Operation { verb: "active message", peer: Some(to), tag: None, bytes: bytes(buffer) }
    }

    pub(crate) fn landing(bytes: u64, from: Rank) -> Self {
        Operation { verb: "landing", peer: Some(from), tag: None, bytes }
    }

    pub(crate) fn probe(from: Sender, tag: Tag) -> Self {
        Operation { verb: "probe", peer: from.rank(), tag: tag.tag(), bytes: 0 }
    }

    /// Makes the error of this operation.
    #[cold]
    pub(crate) fn failed(self, source: cableway_pml::Error) -> Error {
        ErrorKind::Message { operation: self, source }.into()
    }
}

/// Returns the length to name in an error. The engine refuses lengths that do not fit 64 bits.
fn bytes(buffer: &Buffer<'_>) -> u64 {
    buffer.packed_len().unwrap_or(u64::MAX)
}
