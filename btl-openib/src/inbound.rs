//! The receiving side of one queue pair.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::link::Link;
use crate::receives::Receives;
use crate::verbs::QueuePair;

/// The link and the receive buffers of one queue pair.
pub(crate) struct Inbound {
    /// Keeps the queue pair, so that its number is not reused while this entry exists.
    pub(crate) _pair: Arc<QueuePair>,
    pub(crate) link: Arc<Link>,
    pub(crate) receives: Arc<Receives>,
}

impl Inbound {
    /// Posts a consumed buffer again. A broken queue pair would only flush its own buffers.
    #[inline]
    pub(crate) fn give_back(&self, index: usize) {
        if self.receives.is_shared() || !self.link.silenced.load(Ordering::Relaxed) {
            self.receives.post(index);
        }
    }
}
