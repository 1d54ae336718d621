//! What a broken link leaves behind.

use std::collections::VecDeque;

/// What became of the messages of a link that broke, as far as one end knows: enough for both ends together to have each
/// message delivered once by another transport. See [`Btl::remains`](crate::Btl::remains).
#[derive(Debug, Default)]
pub struct Remains {
    /// Messages of the peer that were handed up here. There will be no more.
    pub received: u64,
    /// Messages from here that the peer is known to have been handed.
    pub delivered: u64,
    /// Those that were taken after them, in order, header first: the peer may have been handed some of the first.
    pub uncertain: VecDeque<Box<[u8]>>,
}
