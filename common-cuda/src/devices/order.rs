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

    /// Returns the order of an access to the buffer at `at`: none for host memory, or if the work that the default stream
    /// had when the operation began is known to be done. Makes a driver call only for an allocation that it meets for the
    /// first time.
    pub fn of(&self, at: &Location, devices: &Devices) -> Order {
        if self.settled || !at.on_device() {
            Order::None
        } else if devices.is_synchronised(at) {
            Order::Synchronised
        } else if devices.settled_since(at, self.begun) {
            Order::None
        } else {
            Order::AfterDefaultStream
        }
    }

    /// Returns the order of the next copy.
    pub fn next(&mut self, at: &Location, devices: &Devices) -> Order {
        match std::mem::replace(&mut self.next, Order::None) {
            Order::None => Order::None,
            Order::Synchronised | Order::AfterDefaultStream => self.of(at, devices),
        }
    }
}

impl Devices {
    /// Returns the order of an access to the buffer at `at`, for an operation with a single access.
    pub fn order(&self, at: &Location) -> Order {
        CopyOrder::begin().of(at, self)
    }

    /// Returns a completion that is done with the program's work on the buffer at `at` that an operation must follow. Let
    /// another process read or write the buffer only after that. For host memory, or if the parameter
    /// `default_stream_order` requires no order, it is done at once.
    ///
    /// # Errors
    /// The buffer's context is destroyed, or the calling thread captures a graph.
    pub fn default_stream(&self, at: &Location) -> Result<Completion, DeviceError> {
        self.queue_to_follow(at)?.map_or(Ok(Completion::DONE), |queue| queue.after_default_stream())
    }

    /// Checks whether that work is done. The answer serves every [`CopyOrder`] that began before. A query of a stream takes
    /// more than a microsecond, so call this when there is nothing else to do.
    ///
    /// # Errors
    /// As [`default_stream`](Self::default_stream).
    pub fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        self.queue_to_follow(at)?.map_or(Ok(true), |queue| queue.default_stream_is_idle())
    }

    /// Checks whether the work on the buffer at `at` is done that the default stream had when `order` began. Later work
    /// may keep the stream busy. Then only a later call may find that the earlier work is done.
    ///
    /// # Errors
    /// As [`default_stream`](Self::default_stream).
    pub fn ask_default_stream_since(&self, at: &Location, order: &CopyOrder) -> Result<bool, DeviceError> {
        self.queue_to_follow(at)?.map_or(Ok(true), |queue| queue.default_stream_has_passed(order.begun))
    }

    /// Checks without a driver call whether all work on the buffer at `at` is known to be done, right after
    /// [`ask_default_stream`](Self::ask_default_stream) has said so of the buffer at `asked`.
    pub fn is_settled_beside(&self, at: &Location, asked: &Location) -> bool {
        let same = (at.context, at.device) == (asked.context, asked.device) && at.context != 0;
        same && (at.buffer_id == asked.buffer_id && at.buffer_id != 0 || self.is_synchronised(at))
    }

    /// Checks whether the program's synchronous calls on the buffer at `at` are complete when they return, and those are
    /// complete that were made before the driver was asked to do so.
    fn is_synchronised(&self, at: &Location) -> bool {
        let Some(platform) = self.ordering(at).filter(|platform| platform.settings.synchronises) else { return false };
        let Some(since) = platform.contexts().and_then(|contexts| contexts.synchronised(at.buffer_id)) else {
            return false;
        };
        // While mappings are held, a blocking stream may wait for the operation, and the default stream for that stream.
        since == Moment::START
            || self.settled_since(at, since)
            || self.are_mappings_held()
            || platform.queue(at).is_ok_and(|queue| {
                let default_stream = &queue.workspace.default_stream;
                default_stream.look_at_mark();
                default_stream.settled_since(since)
            })
    }

    /// Checks whether the work that the default stream of the buffer at `at` had at a moment is known to be done.
    fn settled_since(&self, at: &Location, moment: Moment) -> bool {
        let Some(platform) = self.platform_at(at).filter(|platform| platform.settings.ordered) else { return true };
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

    /// Returns the queue whose default stream an access to the buffer at `at` must follow, or `None` if there is nothing to
    /// follow. Also then a thread that captures a graph is refused, if the buffer is on a device.
    fn queue_to_follow(&self, at: &Location) -> Result<Option<Arc<CopyQueue>>, DeviceError> {
        let Some(platform) = self.ordering(at) else { return Ok(None) };
        let queue = platform.queue_to_enter(at)?;
        if self.is_synchronised(at) {
            return queue.refuse_capture().map(|()| None);
        }
        Ok(Some(queue))
    }

    /// Returns the platform of device memory whose default stream comes first.
    fn ordering(&self, at: &Location) -> Option<&Platform> {
        self.platform_at(at).filter(|platform| at.on_device() && platform.settings.ordered)
    }
}
