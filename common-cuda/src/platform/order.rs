//! Messages' queries about the default stream.

use super::Platform;
use crate::copies::Completion;
use crate::error::DeviceError;
use crate::location::Location;
use crate::order;

impl Platform {
    /// As [`Devices::default_stream`](crate::Devices::default_stream).
    pub(crate) fn default_stream(&self, at: &Location) -> Result<Completion, DeviceError> {
        if !self.order.is_ordered() {
            return Ok(Completion::DONE);
        }
        self.queue_to_enter(at)?.after_default_stream()
    }

    /// Checks whether the work that the default stream of `at`'s context had at a moment is known to be done.
    pub(crate) fn settled_since(&self, at: &Location, moment: u64) -> bool {
        if !self.order.is_ordered() {
            return true;
        }
        // Nothing is known about a destroyed context. The next copy detects its end.
        match at.context {
            0 => self.queue(at).is_ok_and(|queue| queue.workspace.default_stream.settled_since(moment)),
            id => self.contexts().is_some_and(|contexts| {
                let known =
                    || contexts.by_id(id).is_some_and(|queue| queue.workspace.default_stream.settled_since(moment));
                order::settled_since(contexts.settled(), id, moment).unwrap_or_else(known)
            }),
        }
    }

    /// Asks the driver whether that stream is idle.
    pub(crate) fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        if !self.order.is_ordered() {
            return Ok(true);
        }
        self.queue_to_enter(at)?.default_stream_is_idle()
    }
}
