//! The estimated cost of messages. Its proportions to other transports' select protocols and algorithms.

use std::time::Duration;

/// The latency of a small message.
pub(crate) const LATENCY: Duration = Duration::from_micros(2);

/// The share of the bandwidth that messages of host memory reach, which are copied in and out.
pub(crate) const HOST_COPIES: f64 = 0.8;
