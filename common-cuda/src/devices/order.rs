//! The order of operations after the program's own work. Everyone who needs an order asks here.

use std::sync::Arc;

use super::Devices;
use crate::copies::{Completion, CopyQueue};
use crate::copy::Order;
use crate::error::DeviceError;
use crate::location::Location;
use crate::order::{self, Moment};
use crate::platform::Platform;

/// The order of an operation's accesses to a buffer after the program's own work.
#[derive(Clone, Copy, Debug)]
pub struct CopyOrder {
    begun: Moment,
    /// True if the operation has waited for the default stream.
    settled: bool,
    /// The order of the next copy, unless the wait is done by then. Later copies follow the first.
    next: Order,
}

impl CopyOrder {
    /// Returns the order of an operation that begins now.
    #[inline]
    pub fn begin() -> Self {
        CopyOrder { begun: Moment::now(), settled: false, next: Order::AfterDefaultStream }
    }

    /// Returns whether the operation has waited for the default stream.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Notes that the operation has waited for the default stream.
    pub fn settle(&mut self) {
        self.settled = true;
    }

    /// Returns the order of an access to the buffer at `at`: none if the work that the default stream had when the
    /// operation began is known to be done. Makes no driver call.
    pub fn of(&self, at: &Location, devices: &Devices) -> Order {
        let settled = self.settled || devices.settled_since(at, self.begun);
        if settled { Order::None } else { Order::AfterDefaultStream }
    }

    /// Returns the order of the next copy.
    pub fn next(&mut self, at: &Location, devices: &Devices) -> Order {
        match std::mem::replace(&mut self.next, Order::None) {
            Order::AfterDefaultStream => self.of(at, devices),
            Order::None => Order::None,
        }
    }
}

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

    /// Asks the driver whether that stream is idle. The answer serves every [`CopyOrder`] that began before. Takes more
    /// than a microsecond, so call it when there is nothing else to do.
    ///
    /// # Errors
    /// As [`default_stream`](Self::default_stream).
    pub fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        self.ordering(at).map_or(Ok(true), |platform| platform.queue_to_enter(at)?.default_stream_is_idle())
    }

    /// Checks whether the work that the default stream of the buffer at `at` had at a moment is known to be done.
    fn settled_since(&self, at: &Location, moment: Moment) -> bool {
        let Some(platform) = self.platform().filter(|platform| platform.settings.ordered) else { return true };
        // Nothing is known about a destroyed context. The next copy detects its end.
        let known = |queue: Arc<CopyQueue>| queue.workspace.default_stream.settled_since(moment);
        match at.context {
            0 => platform.queue(at).is_ok_and(known),
            id => platform.contexts().is_some_and(|contexts| {
                order::settled_since(contexts.settled(), id, moment)
                    .unwrap_or_else(|| contexts.by_id(id).is_some_and(known))
            }),
        }
    }

    /// Returns the platform of device memory whose default stream comes first.
    fn ordering(&self, at: &Location) -> Option<&Platform> {
        self.platform().filter(|platform| at.on_device() && platform.settings.ordered)
    }
}
