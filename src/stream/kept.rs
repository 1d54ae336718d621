//! Messages of a stream that may not be over.

use std::sync::Arc;

use cableway_pml::StreamMessage;
use parking_lot::Mutex;

use crate::communicator::Communicator;
use crate::error::Operation;

/// Messages whose end is looked for when there are so many.
const LOOK_AT: usize = 256;

/// A message that may not be over.
pub(crate) struct Kept {
    pub(crate) message: Arc<StreamMessage>,
    pub(crate) operation: Operation,
    /// Keeps the communicator of a message in the engine.
    pub(crate) _communicator: Option<Communicator>,
}

/// Messages that may not be over, until they are.
#[derive(Default)]
pub(crate) struct KeptList(Mutex<Vec<Kept>>);

impl KeptList {
    /// Adds a message. Errors of those that are over stay with the stream.
    pub(crate) fn keep(&self, kept: Kept) {
        let mut messages = self.0.lock();
        if messages.len() >= LOOK_AT && messages.len().is_power_of_two() {
            messages.retain(|kept| !kept.message.is_over());
        }
        messages.push(kept);
    }

    /// Cancels receives that no message has matched. Returns whether a message is not over.
    pub(crate) fn cancel_rest(&self) -> bool {
        let messages = self.0.lock();
        messages.iter().for_each(|kept| kept.message.cancel());
        messages.iter().any(|kept| !kept.message.is_over())
    }

    /// Waits until the messages that were added so far are over. Returns those that are, and keeps the others.
    pub(crate) fn wait(&self) -> Vec<Kept> {
        // Other threads that wait find the messages, too.
        let all: Vec<_> = self.0.lock().iter().map(|kept| (kept.message.clone(), kept.operation)).collect();
        for (message, operation) in all {
            if let Err(error) = message.wait_over() {
                log::debug!("{operation} on a stream was not waited for: {error}");
            }
        }
        self.0.lock().extract_if(.., |kept| kept.message.is_over()).collect()
    }
}
