//! The order of messages after the program's default streams.

use std::sync::Arc;

use super::Devices;
use crate::copies::{Completion, CopyQueue};
use crate::error::DeviceError;
use crate::location::Location;
use crate::order;
use crate::platform::Platform;

/// A point in time, as [`Devices::settled_since`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Devices {
    /// Returns a completion that is done with the present work of the default stream of the buffer at `at`. Let another
    /// process read or write the buffer only after that. For host memory, or if the parameter `default_stream_order`
    /// requires no order, it is done at once.
    ///
    /// # Errors
    /// The buffer's context is destroyed, or the calling thread captures a graph.
    pub fn default_stream(&self, at: &Location) -> Result<Completion, DeviceError> {
        self.ordering(at).map_or(Ok(Completion::DONE), |platform| platform.queue_to_enter(at)?.after_default_stream())
    }

    /// Returns the present moment. Store it with an operation that begins.
    pub fn moment(&self) -> Moment {
        Moment(order::moment())
    }

    /// Checks whether the work that the default stream of the buffer at `at` had at a moment is known to be done. Then
    /// nothing needs to wait for it ([`Order::None`](crate::Order::None)). Makes no driver call.
    pub fn settled_since(&self, at: &Location, moment: Moment) -> bool {
        let Some(platform) = self.platform().filter(|platform| platform.order.is_ordered()) else { return true };
        // Nothing is known about a destroyed context. The next copy detects its end.
        let known = |queue: Arc<CopyQueue>| queue.workspace.default_stream.settled_since(moment.0);
        match at.context {
            0 => platform.queue(at).is_ok_and(known),
            id => platform.contexts().is_some_and(|contexts| {
                order::settled_since(contexts.settled(), id, moment.0)
                    .unwrap_or_else(|| contexts.by_id(id).is_some_and(known))
            }),
        }
    }

    /// Asks the driver whether that stream is idle. [`settled_since`](Self::settled_since) uses the answer. Takes more
    /// than a microsecond, so call it when there is nothing else to do.
    ///
    /// # Errors
    /// As [`default_stream`](Self::default_stream).
    pub fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        self.ordering(at).map_or(Ok(true), |platform| platform.queue_to_enter(at)?.default_stream_is_idle())
    }

    /// Returns the platform of device memory whose default stream comes first.
    fn ordering(&self, at: &Location) -> Option<&Platform> {
        self.platform().filter(|platform| at.on_device() && platform.order.is_ordered())
    }
}
