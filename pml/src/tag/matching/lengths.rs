//! The lengths of a communicator's queues, for readers that do not hold its lock.

use cableway_base::counters::Gauge;

/// Only the matcher changes these; its caller holds the lock.
#[derive(Default)]
pub(crate) struct Lengths {
    /// Number of posted receives.
    pub(crate) posted: Gauge,
    /// Number of unexpected messages.
    pub(crate) unexpected: Gauge,
    /// Number of messages in the inbox.
    pub(crate) inbox: Gauge,
}
