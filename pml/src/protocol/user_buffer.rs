//! The user's buffer of a transfer. Device copies from or to it come after the program's own work on it.

use cableway_btl::{Local, Packed, Region};
use cableway_common_cuda::{CopyOrder, Devices, Location, Order, Spread, Strided};
use cableway_datatype::Convertor;

/// Most packed bytes of one operation: kernels count them with 31 bits.
const MOST_PACKED: usize = 1 << 30;

/// How one operation of a link addresses a message's data in a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Run,
    /// Blocks at regular distances on either side.
    Blocks,
    /// Blocks that a kernel addresses.
    Packed,
}

impl Form {
    /// Returns the most bytes of one operation of a link with this limit.
    pub(crate) fn most(self, limit: usize) -> u64 {
        match self {
            Form::Run => limit as u64,
            Form::Blocks => u64::MAX,
            Form::Packed => limit.min(MOST_PACKED) as u64,
        }
    }
}

/// Blocks that a kernel addresses, and their base.
pub(crate) type Found = Option<(*mut u8, Spread)>;

pub(crate) struct UserBuffer {
    pub(crate) convertor: Convertor,
    order: CopyOrder,
}

impl UserBuffer {
    pub(crate) fn new(convertor: Convertor, order: CopyOrder) -> Self {
        UserBuffer { convertor, order }
    }

    pub(crate) fn location(&self) -> &Location {
        self.convertor.location()
    }

    pub(crate) fn is_on_device(&self) -> bool {
        self.location().on_device()
    }

    /// Returns `len` bytes from `offset` on, or `None` if the buffer has several runs.
    pub(crate) fn region(&self, offset: u64, len: u64, order: Order) -> Option<Region> {
        region(&self.convertor, offset, len, order)
    }

    /// Returns all `len` bytes for one operation of a link, with the blocks in the region if they lie at regular
    /// distances. Returns `None` for irregular blocks.
    pub(crate) fn whole(&self, len: u64, order: Order) -> Option<(Region, Option<Strided>)> {
        if let Some(region) = self.region(0, len, order) {
            return Some((region, None));
        }
        let (address, len, blocks) = self.convertor.strided()?;
        Some((Region { address, len, location: *self.location(), order }, Some(blocks)))
    }

    /// Lists the blocks of a form that has them.
    pub(crate) fn find(&self, form: Form, devices: &Devices) -> Found {
        if form == Form::Packed { self.convertor.spread(devices) } else { None }
    }

    /// Returns `len` bytes from `position` on for one operation, or `None` if the buffer does not have that form.
    pub(crate) fn local<'f>(
        &self,
        (form, found): (Form, &'f Found),
        (position, len): (u64, u64),
        order: Order,
    ) -> Option<Local<'f>> {
        match form {
            Form::Run => self.region(position, len, order).map(Local::Run),
            Form::Blocks => self.whole(len, order).map(|(region, blocks)| match blocks {
                Some(blocks) => Local::Blocks { region, blocks, len },
                None => Local::Run(region),
            }),
            Form::Packed => found.as_ref().map(|(user, spread)| {
                // A kernel that waits for a stream looks like one without space, so the wait comes before.
                let (location, order) = (*self.location(), Order::None);
                Local::Packed(Packed { user: *user, spread, position, len: len as usize, location, order })
            }),
        }
    }

    /// Returns whether this transfer has waited for the default stream.
    pub(crate) fn is_settled(&self) -> bool {
        self.order.is_settled()
    }

    pub(crate) fn settle(&mut self) {
        self.order.settle();
    }

    /// Returns the order of a link's operation on the buffer.
    pub(crate) fn order(&self, devices: &Devices) -> Order {
        if self.is_on_device() { self.order.of(self.location(), devices) } else { Order::None }
    }

    /// Returns the order of the next copy from or to a device.
    pub(crate) fn next_order(&mut self, devices: &Devices) -> Order {
        self.order.next(self.convertor.location(), devices)
    }
}

/// See [`UserBuffer::region`].
#[inline]
pub(crate) fn region(convertor: &Convertor, offset: u64, len: u64, order: Order) -> Option<Region> {
    let address = convertor.contiguous()?.wrapping_add(offset as usize);
    Some(Region { address, len: len as usize, location: *convertor.location(), order })
}
