//! A user's buffer as an operation of a link touches it.

use cableway_btl::Region;
use cableway_common_cuda::{Order, Spread, Strided};
use cableway_datatype::Convertor;

/// Most packed bytes of one operation: kernels count them with 31 bits.
pub(crate) const MOST_PACKED: usize = 1 << 30;

/// What of a buffer an operation touches.
pub(crate) enum Local {
    Run(Region),
    /// Blocks at regular distances, if they are any.
    Blocks(Region, Option<Strided>),
    /// Blocks that a kernel finds, relative to an address.
    Spread((*mut u8, Spread)),
}

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
