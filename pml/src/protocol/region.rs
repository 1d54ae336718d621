//! A user's buffer as the region of a link's operation.

use cableway_btl::{Local, Packed, Region};
use cableway_common_cuda::{Devices, Order, Spread, Strided};
use cableway_datatype::Convertor;

/// Most packed bytes of one operation: kernels count them with 31 bits.
const MOST_PACKED: usize = 1 << 30;

/// Returns `len` bytes from `offset` on, or `None` if the buffer has several runs.
#[inline]
pub(crate) fn run(convertor: &Convertor, offset: u64, len: u64, order: Order) -> Option<Region> {
    let address = convertor.contiguous()?.wrapping_add(offset as usize);
    Some(Region { address, len: len as usize, location: *convertor.location(), order })
}

/// Returns all `len` bytes, with the blocks in the region if they lie at regular distances. Returns `None` for
/// irregular blocks.
pub(crate) fn whole(convertor: &Convertor, len: u64, order: Order) -> Option<(Region, Option<Strided>)> {
    if let Some(region) = run(convertor, 0, len, order) {
        return Some((region, None));
    }
    let (address, len, blocks) = convertor.strided()?;
    Some((Region { address, len, location: *convertor.location(), order }, Some(blocks)))
}

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

/// Lists the blocks of a form that has them.
pub(crate) fn find(convertor: &Convertor, form: Form, devices: &Devices) -> Found {
    if form == Form::Packed { convertor.spread(devices) } else { None }
}

/// Returns the buffer of `len` bytes from `position` on for one operation, or `None` if it does not have that form.
pub(crate) fn local<'f>(
    convertor: &Convertor,
    (form, found): (Form, &'f Found),
    (position, len): (u64, u64),
    order: Order,
) -> Option<Local<'f>> {
    match form {
        Form::Run => run(convertor, position, len, order).map(Local::Run),
        Form::Blocks => whole(convertor, len, order).map(|(region, blocks)| match blocks {
            Some(blocks) => Local::Blocks { region, blocks, len },
            None => Local::Run(region),
        }),
        Form::Packed => found.as_ref().map(|(user, spread)| {
            // A kernel that waits for a stream looks like one without space, so the wait comes before.
            let (location, order) = (*convertor.location(), Order::None);
            Local::Packed(Packed { user: *user, spread, position, len: len as usize, location, order })
        }),
    }
}
