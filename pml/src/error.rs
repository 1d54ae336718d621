//! Errors of operations.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_common_cuda::DeviceError;
use cableway_datatype::Convertor;

use crate::abort::Abort;
use crate::refusal::Refusal;
use crate::status::Status;

/// Why an operation failed. The call that started the operation returns it, or its request holds it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process died, or was disconnected because it sent malformed bytes.
    #[error("peer {peer} failed: {reason}")]
    PeerFailed {
        /// The process's rank in the job.
        peer: Rank,
        /// The observed failure.
        reason: Arc<str>,
    },
    /// The process has left the job in good order. Messages that it sent before can still be received.
    #[error("peer {peer} has left the job and no longer sends or receives")]
    PeerLeft {
        /// The process's rank in the job.
        peer: Rank,
    },
    /// No transport of this process reaches the peer, or the peer had ended before it was connected.
    #[error("peer {peer} cannot be reached: {reason}")]
    Unreachable {
        /// The process's rank in the job.
        peer: Rank,
        /// The attempts.
        reason: Arc<str>,
    },
    /// The message was longer than the receive's buffer. The buffer holds the beginning of the message.
    #[error(
        "message of {sent} bytes from rank {source_rank}, tag {tag}, exceeds the receive buffer of {capacity} bytes"
    )]
    Truncated {
        /// The sender's rank in the communicator.
        source_rank: i32,
        /// The message's tag.
        tag: i32,
        /// The message's length in bytes.
        sent: u64,
        /// The buffer's length in bytes.
        capacity: u64,
    },
    /// The peer aborted the transfer, for example because its device failed or it freed the communicator.
    #[error("peer {peer} aborted a message of {len} bytes: {reason}")]
    PeerAborted {
        /// The process's rank in the job.
        peer: Rank,
        /// The message's length in bytes.
        len: u64,
        /// The peer's reason.
        reason: Abort,
    },
    /// The device's driver reported an error.
    #[error("cannot access {len} bytes of device memory at {address:#x}: {source}")]
    Device {
        /// The user's buffer.
        address: usize,
        /// Its length in bytes.
        len: u64,
        /// The driver's error.
        source: DeviceError,
    },
    /// No message can have this datatype and count.
    #[error(transparent)]
    Datatype(#[from] cableway_datatype::Error),
    /// A transport failed.
    #[error(transparent)]
    Btl(cableway_btl::Error),
    /// The exchange of addresses failed.
    #[error(transparent)]
    Modex(#[from] cableway_btl::ModexError),
    /// The rank does not exist.
    #[error("invalid rank {rank}: there are {size} ranks")]
    NoSuchRank {
        /// The rank of the call.
        rank: i32,
        /// Number of ranks.
        size: usize,
    },
    /// The tag cannot be sent.
    #[error("invalid tag {tag}: use a tag of 0 or above")]
    BadTag {
        /// The tag of the call.
        tag: i32,
    },
    /// Another communicator has this context.
    #[error("context {context} is in use by another communicator")]
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
    /// The attached buffer has no space for a buffered send.
    #[error("the attached buffer of {size} bytes has no space for {needed} more bytes: attach a larger buffer")]
    NoBufferSpace {
        /// The buffer's size in bytes.
        size: usize,
        /// Bytes that the message needs, including overhead.
        needed: u64,
    },
    /// The owner of registered memory refused an access.
    #[error("peer {peer} refused access to {len} bytes at offset {offset} of its registered memory: {refusal}")]
    Refused {
        /// The owner's rank in the job.
        peer: Rank,
        /// The offset of the access in bytes.
        offset: u64,
        /// The length of the access in bytes.
        len: u64,
        /// The owner's reason.
        refusal: Refusal,
    },
    /// A process refused an operation on its window.
    #[error("rank {rank} refused an operation on {len} bytes at displacement {displacement} of its window: {refusal}")]
    RefusedByWindow {
        /// The rank of the target in the window.
        rank: u32,
        /// The displacement in the target's units.
        displacement: i64,
        /// The length of the data in bytes.
        len: u64,
        /// The target's reason.
        refusal: Refusal,
    },
    /// The two sides of a one-sided operation hold different amounts of data.
    #[error("the two sides of an operation hold {origin} and {target} bytes: describe equal amounts")]
    UnequalBuffers {
        /// The bytes of the origin's or result's buffer.
        origin: u64,
        /// The bytes in the target's memory.
        target: u64,
    },
    /// A call is not allowed in the present epoch of a window.
    #[error("the epoch of the window does not allow the call: {advice}")]
    OutOfEpoch {
        /// What to do.
        advice: &'static str,
    },
    /// A datatype has too many blocks for the target of a one-sided operation.
    #[error("an element of {blocks} blocks exceeds the limit of {limit} for one operation: use several")]
    TooManyBlocks {
        /// The blocks of an element.
        blocks: u64,
        /// The limit.
        limit: usize,
    },
    /// The memory cannot be attached to a window, or was not.
    #[error("cannot attach or detach {len} bytes at {address:#x}: {reason}")]
    BadAttachment {
        /// The address.
        address: usize,
        /// The length in bytes; 0 for a detachment.
        len: u64,
        /// Why not.
        reason: &'static str,
    },
    /// The owner of registered memory answered a get with data of another length.
    #[error("peer {peer} answered a get of {expected} bytes with {sent} bytes")]
    BadAnswer {
        /// The owner's rank in the job.
        peer: Rank,
        /// The length in bytes of the data that it sent.
        sent: u64,
        /// The length in bytes of the get.
        expected: u64,
    },
    /// A place is not within the registered memory, as its key tells.
    #[error("{len} bytes at offset {offset} exceed the registered memory of {registered} bytes")]
    OutsideRegistration {
        /// The offset in bytes.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The length of the registered memory in bytes.
        registered: u64,
    },
    /// A word of a signal or an atomic operation is misaligned.
    #[error("the word at offset {offset} is misaligned: its address must be a multiple of {width} bytes")]
    MisalignedWord {
        /// The offset in bytes.
        offset: u64,
        /// The word's width in bytes.
        width: u64,
    },
    /// A word of this process's registered memory cannot be read.
    #[error("cannot read a word at offset {offset} of registered memory: {reason}")]
    BadWord {
        /// The offset in bytes.
        offset: u64,
        /// Why not.
        reason: Refusal,
    },
    /// The signal of a put or get is in another process than the registered memory.
    #[error(
        "the signal is in memory of rank {owner}, but the data in that of rank {target}: use a key of rank {target}"
    )]
    ForeignSignal {
        /// The rank in the job that owns the signal's memory.
        owner: Rank,
        /// The rank in the job that owns the registered memory.
        target: Rank,
    },
    /// The buffer of a put in the order of a stream is not one run of bytes.
    #[error("a put of a stream needs one run of bytes: pack the elements, or put each block on its own")]
    NotContiguous,
    /// The memory cannot be registered.
    #[error("the memory cannot be registered: {reason}")]
    BadRegistration {
        /// Why not.
        reason: &'static str,
    },
    /// The header of an active message is too long.
    #[error("active message {id}: its header of {len} bytes exceeds {limit} bytes: send the rest as data")]
    HeaderTooLong {
        /// The message's id.
        id: u32,
        /// The header's length in bytes.
        len: usize,
        /// The longest header in bytes.
        limit: usize,
    },
    /// Another handler is registered for active messages with this id.
    #[error("active message {id} has a handler already: choose another id, or remove the handler first")]
    HandlerInUse {
        /// The id.
        id: u32,
    },
    /// The data of an active message has another length than its sender announced.
    #[error("rank {source_rank} sent {sent} bytes of data with an active message, and had announced {announced}")]
    OtherLength {
        /// The sender's rank.
        source_rank: u32,
        /// The announced length in bytes.
        announced: u64,
        /// The length in bytes of the data that came.
        sent: u64,
    },
    /// The message belongs to a matched probe of another engine.
    #[error("the message was probed by another engine: receive it with the engine that probed it")]
    OtherEngine,
    /// The request is already active, or is not persistent.
    #[error("the request cannot be started: {reason}")]
    BadRequest {
        /// Why the request cannot be started.
        reason: &'static str,
    },
    /// A stream of the program cannot take a message.
    #[error("a stream cannot take a message: {0}")]
    Stream(DeviceError),
    /// A context was destroyed, or a kernel faulted there, before a stream or kernel of the context started a message.
    #[error("the message will not start, because the context of its stream or kernel does no more work: {0}")]
    StreamContext(DeviceError),
    /// The engine's host promised that its calls do not overlap, but messages on streams need a thread that calls it.
    #[error(
        "messages on streams need a thread, and calls must not overlap here: initialise MPI with MPI_THREAD_MULTIPLE"
    )]
    SerializedCalls,
    /// All streams of a context share one queue of the device. One that waits would hold up the copies that end its wait.
    #[error(
        "messages in the order of a stream need two hardware queues: set CUDA_DEVICE_MAX_CONNECTIONS to 2 or more, or unset it"
    )]
    OneConnection,
    /// The peer has dropped its side of a prepared operation.
    #[error("rank {peer} has dropped its side of a prepared operation: both sides must post it equally often")]
    PreparedEnded {
        /// The peer's rank in the communicator.
        peer: i32,
    },
    /// A stream that captures a graph cannot take a prepared operation that a thread moves.
    #[error(
        "a graph cannot contain a prepared operation with rank {peer} that the streams alone cannot move: {reason}"
    )]
    NotCapturable {
        /// The peer's rank in the communicator.
        peer: i32,
        /// Why the streams cannot move it.
        reason: &'static str,
    },
    /// The thread of messages on streams cannot be created.
    #[error("the thread of messages on streams cannot be created: {reason}")]
    NoThread {
        /// The system's reason.
        reason: Arc<str>,
    },
    /// The thread of messages on streams has ended.
    #[error("messages on streams have ended, with their engine or because their thread failed")]
    StreamsEnded,
    /// This process is a forked child of a process of the job, and is not part of the job itself.
    #[error("this process is a forked child: only its parent can send and receive")]
    Forked,
    /// The host has called `finalize`.
    #[error("the engine was finalized")]
    Finalized,
}

impl From<cableway_btl::Error> for Error {
    /// Converts a transport's error. Errors that end a peer keep the peer's rank.
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
    /// Returns the error of a receive of `capacity` bytes if its message is longer.
    #[inline]
    pub(crate) fn truncated(status: &Status, capacity: u64) -> Option<Self> {
        let &Status { source, tag, len, .. } = status;
        (len > capacity).then_some(Error::Truncated { source_rank: source, tag, sent: len, capacity })
    }

    /// Converts a convertor's error. An error of a device names the buffer.
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
