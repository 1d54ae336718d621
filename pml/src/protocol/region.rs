//! A user's buffer as an operation of a link touches it.

use cableway_btl::{Local, Packed, Region};
use cableway_common_cuda::{Devices, Order, Spread, Strided};
use cableway_datatype::Convertor;

/// Most packed bytes of one operation: kernels count them with 31 bits.
pub(crate) const MOST_PACKED: usize = 1 << 30;

/// `len` bytes from `offset` on; none where the buffer's bytes do not lie one after another.
#[inline]
pub(crate) fn run(convertor: &Convertor, offset: u64, len: u64, order: Order) -> Option<Region> {
    let address = convertor.contiguous()?.wrapping_add(offset as usize);
    Some(Region { address, len: len as usize, location: *convertor.location(), order })
}

/// All `len` bytes, and where in the region they are if that is in blocks at regular distances; none if in others.
pub(crate) fn whole(convertor: &Convertor, len: u64, order: Order) -> Option<(Region, Option<Strided>)> {
    if let Some(region) = run(convertor, 0, len, order) {
        return Some((region, None));
    }
    let (address, len, blocks) = convertor.strided()?;
    Some((Region { address, len, location: *convertor.location(), order }, Some(blocks)))
}

/// How one operation of a link finds a message's data in a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Run,
    /// Blocks at regular distances on either side.
    Blocks,
    /// Blocks that a kernel finds.
    Packed,
}

/// Blocks that a kernel finds, and what they are relative to.
pub(crate) type Found = Option<(*mut u8, Spread)>;

/// Asks for the blocks of a form that has such.
pub(crate) fn find(convertor: &Convertor, form: Form, devices: &Devices) -> Found {
    if form == Form::Packed { convertor.spread(devices) } else { None }
}

/// The buffer of `len` bytes from `position` on, for one operation; none if it is not to be had in that form.
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
            // A kernel that waits for a stream cannot be told from one that finds no room: that was waited for before.
            let (location, order) = (*convertor.location(), Order::None);
            Local::Packed(Packed { user: *user, spread, position, len: len as usize, location, order })
        }),
    }
}
