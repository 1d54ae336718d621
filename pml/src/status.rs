//! What a completed operation tells, and the values that stand for any rank, any tag and no process.

/// The sender or tag that matches any; as a tag it matches those of 0 and above.
pub const ANY: i32 = -1;
/// The peer that does not exist: sends to it vanish, receives from it complete at once with nothing.
pub const PROC_NULL: i32 = -2;

/// What is known about a completed receive (or a probed message).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The sender in the communicator's count, or [`PROC_NULL`].
    pub source: i32,
    /// The message's tag; [`ANY`] where there was no message.
    pub tag: i32,
    /// Packed length in bytes of the message **as sent**, also where the receive truncated it.
    pub len: u64,
    /// Whether the receive was cancelled before anything matched it.
    pub cancelled: bool,
}

impl Status {
    /// The status of a send, and of an operation with [`PROC_NULL`].
    pub const EMPTY: Status = Status { source: PROC_NULL, tag: ANY, len: 0, cancelled: false };
}

/// How a call that starts an operation ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation is complete. The request was not used and its hook is not called: reuse or drop it.
    Complete,
    /// The request is active, or completed already; it stays the engine's until
    /// [`Request::is_complete`](crate::Request::is_complete), or, where it has a hook, until that was called.
    Started,
}
