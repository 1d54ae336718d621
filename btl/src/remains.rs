//! The remains of a broken link.

use std::collections::VecDeque;

/// The fate of a broken link's messages as far as one end knows. Both ends' remains together let another transport
/// deliver each message once. See [`Btl::remains`](crate::Btl::remains).
#[derive(Debug, Default)]
pub struct Remains {
    /// Messages of the peer that were handed up here. There will be no more.
    pub received: u64,
    /// Messages from here that the peer is known to have been handed.
    pub delivered: u64,
    /// The later messages that were taken, in order, header first. The peer may have received the first of them.
    pub uncertain: VecDeque<Box<[u8]>>,
}
