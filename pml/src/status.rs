//! The status of a completed operation, and the values for any rank, any tag and no process.

/// Matches any source, or any tag of 0 and above.
pub const ANY: i32 = -1;
/// The peer that does not exist. A send to it has no effect; a receive from it completes at once without data.
pub const PROC_NULL: i32 = -2;
/// The tag of notices: messages that a process does not expect, and that [`Engine::notices`](crate::Engine::notices)
/// counts. Neither Open MPI's collectives nor Cableway's use it.
pub const NOTICE: i32 = i32::MIN;

/// The status of a completed receive or a probed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The sender's rank in the communicator, or [`PROC_NULL`].
    pub source: i32,
    /// The message's tag, or [`ANY`] if there was no message.
    pub tag: i32,
    /// Packed length in bytes of the message **as sent**, even if the receive truncated it.
    pub len: u64,
    /// Whether the receive was cancelled before a message matched it.
    pub cancelled: bool,
}

impl Status {
    /// Status of a send, and of an operation with [`PROC_NULL`].
    pub const EMPTY: Status = Status { source: PROC_NULL, tag: ANY, len: 0, cancelled: false };
}

/// The outcome of a call that starts an operation.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation is complete. The request was not used and its hook is not called. The host may reuse or drop it.
    Complete,
    /// The request is active or already complete. The engine owns it until
    /// [`Request::is_complete`](crate::Request::is_complete) returns true or, if it has a hook, until the hook was
    /// called.
    Started,
}
