//! Orders a transfer's device copies after the program's own work on the buffer.

use cableway_common_cuda::{Devices, Location, Moment, Order};

/// The work that copies from or to a buffer wait for.
pub(crate) struct CopyOrder {
    /// When the operation began.
    begun: Moment,
    /// Whether the transfer has waited for the default stream since.
    settled: bool,
    /// Order of the next copy, unless the wait is done by then. Later copies follow the first.
    next: Order,
}

impl CopyOrder {
    pub(crate) fn new(begun: Moment) -> Self {
        CopyOrder { begun, settled: false, next: Order::AfterDefaultStream }
    }

    /// Returns whether this transfer has waited for the default stream.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }

    /// Returns the order of an operation on the buffer at `at`.
    pub(crate) fn of(&self, at: &Location, devices: &Devices) -> Order {
        let settled = self.settled || devices.settled_since(at, self.begun);
        if settled { Order::None } else { Order::AfterDefaultStream }
    }

    /// Returns the order of the next copy.
    pub(crate) fn next(&mut self, at: &Location, devices: &Devices) -> Order {
        match std::mem::replace(&mut self.next, Order::None) {
            Order::AfterDefaultStream => self.of(at, devices),
            Order::None => Order::None,
        }
    }
}
