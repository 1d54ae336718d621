//! The user's buffer of a transfer. Device copies from or to it come after the program's own work on it.

use cableway_btl::Region;
use cableway_common_cuda::{Devices, Location, Moment, Order, Strided};
use cableway_datatype::Convertor;

use super::region;

pub(crate) struct UserBuffer {
    pub(crate) convertor: Convertor,
    /// When the operation began.
    begun: Moment,
    /// Whether the transfer has waited for the default stream since.
    settled: bool,
    /// Order of the next copy, unless the wait is done by then. Later copies follow the first.
    next: Order,
}

impl UserBuffer {
    pub(crate) fn new(convertor: Convertor, begun: Moment) -> Self {
        UserBuffer { convertor, begun, settled: false, next: Order::AfterDefaultStream }
    }

    pub(crate) fn location(&self) -> &Location {
        self.convertor.location()
    }

    pub(crate) fn is_on_device(&self) -> bool {
        self.location().on_device()
    }

    /// Returns `len` bytes from `offset` on, if the buffer is one run.
    pub(crate) fn region(&self, offset: u64, len: u64, order: Order) -> Option<Region> {
        region::run(&self.convertor, offset, len, order)
    }

    /// Returns all `len` bytes for one operation of a link, with the blocks if there are several.
    pub(crate) fn whole(&self, len: u64, order: Order) -> Option<(Region, Option<Strided>)> {
        region::whole(&self.convertor, len, order)
    }

    /// Returns whether this transfer has waited for the default stream.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }

    /// Returns the order of a link's operation on the buffer.
    pub(crate) fn order(&self, devices: &Devices) -> Order {
        let settled = !self.is_on_device() || self.settled || devices.settled_since(self.location(), self.begun);
        if settled { Order::None } else { Order::AfterDefaultStream }
    }

    /// Returns the order of the next copy from or to a device.
    pub(crate) fn next_order(&mut self, devices: &Devices) -> Order {
        match std::mem::replace(&mut self.next, Order::None) {
            Order::AfterDefaultStream => self.order(devices),
            Order::None => Order::None,
        }
    }
}
