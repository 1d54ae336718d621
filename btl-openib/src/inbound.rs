//! What arrives by one queue pair: from which link, and into which buffers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::link::Link;
use crate::receives::Receives;
use crate::verbs::QueuePair;

/// What arrives by one queue pair: whose it is, and in which buffers.
pub(crate) struct Inbound {
    /// Whose number is nobody else's for as long as this is known by it.
    pub(crate) _pair: Arc<QueuePair>,
    pub(crate) link: Arc<Link>,
    pub(crate) receives: Arc<Receives>,
}

impl Inbound {
    /// Nobody needs this buffer's message any more. A broken queue pair would only hand its own back again.
    #[inline]
    pub(crate) fn give_back(&self, index: usize) {
        if self.receives.is_shared() || !self.link.silenced.load(Ordering::Relaxed) {
            self.receives.post(index);
        }
    }
}
