//! What can go wrong with a message.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_common_cuda::DeviceError;
use cableway_datatype::Convertor;

use crate::status::Status;

/// Why an operation failed. Returned by the call that began the operation, or found in its request.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process is dead, or was disconnected because its bytes made no sense.
    #[error("peer {peer} failed: {reason}")]
    PeerFailed {
        /// The process, in the job's count.
        peer: Rank,
        /// What was seen.
        reason: Arc<str>,
    },
    /// The process has left the job in good order. What it had sent before can still be received.
    #[error("peer {peer} has left the job: nothing more comes from it, and it receives nothing")]
    PeerLeft {
        /// The process, in the job's count.
        peer: Rank,
    },
    /// No transport of this process reaches the peer, or it had ended before it was connected.
    #[error("peer {peer} cannot be reached: {reason}")]
    Unreachable {
        /// The process, in the job's count.
        peer: Rank,
        /// What was tried.
        reason: Arc<str>,
    },
    /// The message was longer than the buffer it was received into. The buffer is filled as far as it reaches.
    #[error("message of {sent} bytes from rank {source_rank} with tag {tag} was truncated to the {room} bytes posted")]
    Truncated {
        /// Sender, in the communicator's count.
        source_rank: i32,
        /// The message's tag.
        tag: i32,
        /// Its length in bytes.
        sent: u64,
        /// What the receive had room for.
        room: u64,
    },
    /// The other side gave the transfer up, because its device failed, say, or freed the communicator.
    #[error("peer {peer} gave up a message of {len} bytes: {reason}")]
    PeerGaveUp {
        /// The process, in the job's count.
        peer: Rank,
        /// The message's length in bytes.
        len: u64,
        /// What the other side said.
        reason: Abort,
    },
    /// The device's driver refused or failed.
    #[error("device memory at {address:#x}, {len} bytes: {source}")]
    Device {
        /// The user's buffer.
        address: usize,
        /// Its length in bytes.
        len: u64,
        /// The driver's answer.
        source: DeviceError,
    },
    /// The datatype and count describe no possible message.
    #[error(transparent)]
    Datatype(#[from] cableway_datatype::Error),
    /// A transport failed.
    #[error(transparent)]
    Btl(cableway_btl::Error),
    /// The exchange of addresses failed.
    #[error(transparent)]
    Modex(#[from] cableway_btl::ModexError),
    /// There is no such rank.
    #[error("rank {rank} is none of the communicator's {size}")]
    NoSuchRank {
        /// What was given.
        rank: i32,
        /// How many ranks there are.
        size: usize,
    },
    /// The tag cannot be sent.
    #[error("tag {tag} cannot be sent; user tags are 0 and above")]
    BadTag {
        /// What was given.
        tag: i32,
    },
    /// Another live communicator has this context.
    #[error("context {context} is in use")]
    ContextInUse {
        /// The context.
        context: u32,
    },
    /// The communicator was removed while the operation was pending, or before.
    #[error("the communicator with context {context} was removed")]
    CommunicatorRemoved {
        /// The context.
        context: u32,
    },
    /// The attached buffer has no room for a buffered send.
    #[error("the attached buffer of {size} bytes has no room for {needed} more")]
    NoBufferSpace {
        /// Its size in bytes.
        size: usize,
        /// What the message needs, its overhead included.
        needed: u64,
    },
    /// The message was taken by a probe of another engine.
    #[error("the message was probed with another engine: receive it with the engine that probed it")]
    OtherEngine,
    /// The request is active already, or was not made persistent.
    #[error("the request cannot be started: {reason}")]
    BadRequest {
        /// Why not.
        reason: &'static str,
    },
    /// This process was forked from the one that takes part in the job, and does not take part itself.
    #[error("this process was forked from a process of the job; only that one sends and receives")]
    Forked,
    /// `finalize` was called.
    #[error("the engine was finalized")]
    Finalized,
}

impl From<cableway_btl::Error> for Error {
    /// What a transport says of a peer is so for the engine.
    fn from(error: cableway_btl::Error) -> Self {
        use cableway_btl::Error as Btl;
        match error {
            Btl::PeerLeft { peer, .. } => Error::PeerLeft { peer },
            Btl::PeerGone { peer, .. } | Btl::Malformed { peer, .. } => {
                Error::PeerFailed { peer, reason: error.to_string().into() }
            }
            other => Error::Btl(other),
        }
    }
}

impl Error {
    /// What is wrong with a receive of `room` bytes if its message is longer.
    #[inline]
    pub(crate) fn truncated(status: &Status, room: u64) -> Option<Self> {
        let &Status { source, tag, len, .. } = status;
        (len > room).then_some(Error::Truncated { source_rank: source, tag, sent: len, room })
    }

    /// What a convertor answered; where a device is to blame, it names the buffer.
    #[cold]
    pub(crate) fn of_copy(error: cableway_datatype::Error, convertor: &Convertor) -> Self {
        match error {
            cableway_datatype::Error::Device(source) => {
                let address = convertor.contiguous().map_or(0, |address| address as usize);
                Error::Device { address, len: convertor.packed_size(), source }
            }
            error => Error::Datatype(error),
        }
    }
}

/// Why the other side of a transfer gave it up; travels in headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abort {
    /// Its device failed.
    Device,
    /// It removed the communicator before the message was received.
    CommunicatorRemoved,
    /// Its transport failed in mid-transfer.
    Transport,
    /// It took the message by a matched probe and dropped it.
    Discarded,
    /// A reason that this version does not know.
    Other(u32),
}

impl Abort {
    pub(crate) fn code(self) -> u32 {
        match self {
            Abort::Device => 1,
            Abort::CommunicatorRemoved => 2,
            Abort::Transport => 3,
            Abort::Discarded => 4,
            Abort::Other(code) => code,
        }
    }

    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            1 => Abort::Device,
            2 => Abort::CommunicatorRemoved,
            3 => Abort::Transport,
            4 => Abort::Discarded,
            other => Abort::Other(other),
        }
    }
}

impl std::fmt::Display for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Abort::Device => f.write_str("its device failed"),
            Abort::CommunicatorRemoved => f.write_str("it removed the communicator"),
            Abort::Transport => f.write_str("its transport failed"),
            Abort::Discarded => f.write_str("it discarded the message"),
            Abort::Other(code) => write!(f, "reason {code}"),
        }
    }
}
