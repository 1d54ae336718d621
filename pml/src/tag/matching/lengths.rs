//! How much waits in a communicator, for readers that do not hold its lock.

use cableway_base::counters::Gauge;

/// Changed by the matcher alone, whose caller holds the lock.
#[derive(Default)]
pub(crate) struct Lengths {
    /// Receives that no message has come for.
    pub(crate) posted: Gauge,
    /// Messages that nobody has received.
    pub(crate) unexpected: Gauge,
}
