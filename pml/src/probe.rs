//! Probes.

use crate::request::Status;

/// A message that a matched probe took out of the queue. Dropping it discards the message; its sender is told.
pub struct Message {
    status: Status,
}

impl Message {
    /// What a probe would say about it.
    pub fn status(&self) -> Status {
        self.status
    }
}
