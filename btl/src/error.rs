use cableway_base::Rank;

/// Why a transport could not do something. Being busy is no error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer ended in good order: what it had sent has arrived or will, and nothing sent now would be received.
    #[error("{btl}: peer {peer} has left in good order")]
    PeerLeft {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
    },
    /// No connection could be made, so that nothing was exchanged: the peer may have ended, in good order or not, or
    /// another transport may reach it.
    #[error("{btl}: peer {peer} cannot be reached: {reason}")]
    Unreachable {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// What was tried, and the answer.
        reason: String,
    },
    /// The peer died, closed its end, or the network to it broke.
    #[error("{btl}: peer {peer} is gone: {reason}")]
    PeerGone {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// What was seen.
        reason: String,
    },
    /// The peer broke the transport's protocol and was disconnected.
    #[error("{btl}: peer {peer} was disconnected: {reason}")]
    Malformed {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// What was wrong with its bytes.
        reason: String,
    },
    /// The operation is not available to this peer; another protocol must be taken. Nothing was transferred.
    #[error("{btl}: {operation} is not available: {reason}")]
    Unavailable {
        /// The transport.
        btl: &'static str,
        /// What was asked for.
        operation: &'static str,
        /// Why not.
        reason: String,
    },
    /// The system refused a resource.
    #[error("{btl}: {what}: {source}")]
    System {
        /// The transport.
        btl: &'static str,
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::sync::Arc<std::io::Error>,
    },
    /// A card that a peer published cannot be read.
    #[error("{btl}: the address that peer {peer} published is malformed: {reason}")]
    BadCard {
        /// The transport.
        btl: &'static str,
        /// The peer.
        peer: Rank,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// A [`Error::System`] from an I/O error.
    pub fn system(btl: &'static str, what: impl Into<String>, source: std::io::Error) -> Self {
        Error::System { btl, what: what.into(), source: std::sync::Arc::new(source) }
    }
}
