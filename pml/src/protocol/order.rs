//! Order of a transfer's device copies after the program's own work on the buffer.

use cableway_common_cuda::{Devices, Location, Moment, Order};

/// What copies from or to a buffer wait for.
pub(crate) struct CopyOrder {
    /// When the operation began.
    begun: Moment,
    /// The default stream's work was waited for since.
    settled: bool,
    /// Of the next copy, if nothing has settled it by then. Later copies follow the first.
    next: Order,
}

impl CopyOrder {
    pub(crate) fn new(begun: Moment) -> Self {
        CopyOrder { begun, settled: false, next: Order::AfterDefaultStream }
    }

    /// Whether the default stream's work was waited for by this transfer.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }

    /// What an operation on the buffer at `at` waits for.
    pub(crate) fn of(&self, at: &Location, devices: &Devices) -> Order {
        let settled = self.settled || devices.settled_since(at, self.begun);
        if settled { Order::None } else { Order::AfterDefaultStream }
    }

    /// What the next copy waits for.
    pub(crate) fn next(&mut self, at: &Location, devices: &Devices) -> Order {
        match std::mem::replace(&mut self.next, Order::None) {
            Order::AfterDefaultStream => self.of(at, devices),
            Order::None => Order::None,
        }
    }
}
