use cableway_base::Rank;

/// The reason why a transport failed. A busy transport is not an error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer left. All its messages have arrived or will, and it receives nothing more.
    #[error("{btl}: peer {peer} has left in good order")]
    PeerLeft {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
    },
    /// No connection was made, so nothing was exchanged. The peer may have left or died, or another transport may reach
    /// it.
    #[error("{btl}: peer {peer} cannot be reached: {reason}")]
    Unreachable {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// The attempt and its result.
        reason: String,
    },
    /// The peer died or closed its end, or the network broke.
    #[error("{btl}: peer {peer} is gone: {reason}")]
    PeerGone {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// The observed fault.
        reason: String,
    },
    /// The peer broke the transport's protocol and was disconnected.
    #[error("{btl}: peer {peer} was disconnected: {reason}")]
    Malformed {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// The fault in its bytes.
        reason: String,
    },
    /// The operation is not available for this peer. Nothing was transferred. Use another protocol.
    #[error("{btl}: {operation} is not available: {reason}")]
    Unavailable {
        /// The transport.
        btl: &'static str,
        /// The requested operation.
        operation: &'static str,
        /// The reason.
        reason: String,
    },
    /// The system refused a resource.
    #[error("{btl}: {what}: {source}")]
    System {
        /// The transport.
        btl: &'static str,
        /// The failed action.
        what: String,
        /// The system's error.
        source: std::sync::Arc<std::io::Error>,
    },
    /// A card that a peer published is malformed.
    #[error("{btl}: the address that peer {peer} published is malformed: {reason}")]
    BadCard {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// The fault.
        reason: String,
    },
}

impl Error {
    /// Makes an [`Error::System`] from an I/O error.
    pub fn system(btl: &'static str, what: impl Into<String>, source: std::io::Error) -> Self {
        Error::System { btl, what: what.into(), source: std::sync::Arc::new(source) }
    }
}
