//! The remains of a broken link.

use std::collections::VecDeque;

/// The state of a broken link's messages, as far as one end knows. Another transport uses both ends' remains to deliver
/// each message once. See [`Btl::remains`](crate::Btl::remains).
#[derive(Debug, Default)]
pub struct Remains {
    /// The number of the peer's messages that were delivered here. There will be no more.
    pub received: u64,
    /// The number of messages from here that the peer is known to have received.
    pub delivered: u64,
    /// The later messages that were accepted, in order, header first. The peer may have received the first of them.
    pub uncertain: VecDeque<Box<[u8]>>,
}
