//! Sending.

use std::sync::Arc;

use crate::buffered::AttachedBuffer;

/// MPI's send modes.
#[derive(Clone, Default)]
pub enum SendMode {
    /// Complete when the buffer can be reused.
    #[default]
    Standard,
    /// As standard; the receiver is known to have posted.
    Ready,
    /// Complete when the receiver has matched the message.
    Synchronous,
    /// Complete at once: what cannot leave now is copied into the attached buffer.
    Buffered(Arc<AttachedBuffer>),
}
