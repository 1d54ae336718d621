//! What operations cost, as measured between two cores of one socket; protocols are chosen by their proportions.

use std::time::Duration;

use cableway_btl::Cost;

/// One way of a small message.
pub(crate) const LATENCY: Duration = Duration::from_nanos(120);

/// Two copies through fragments that stay in cache.
pub(crate) const SEND: Cost = Cost { fixed: LATENCY, bytes_per_second: 8e9 };

/// One copy, and the system call that makes it.
pub(crate) const SINGLE_COPY: Cost = Cost { fixed: Duration::from_nanos(700), bytes_per_second: 12e9 };

/// Largest single `get` or `put`: they are done when they return, and progress waits that long, some 0.1 ms.
pub(crate) const SINGLE_COPY_PIECE: usize = 1 << 20;
