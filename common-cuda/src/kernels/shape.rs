//! Blocks of bytes at regular distances, as kernels/shape.h declares them.

use crate::copy::BlockCopy;
use crate::strided::{MAX_STRIDED_DIMENSIONS, Strided};

#[derive(Clone, Copy)]
#[repr(C)]
struct Side {
    address: u64,
    stride: [i64; MAX_STRIDED_DIMENSIONS],
    /// In elements.
    block: u32,
    count: [u32; MAX_STRIDED_DIMENSIONS],
}

/// A copy from blocks to blocks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Shape {
    pub(super) elements: u32,
    width: u32,
    to: Side,
    from: Side,
}
const _: () = assert!(size_of::<Shape>() == 8 + 2 * 48);

impl Shape {
    pub(super) const NOTHING: Shape = {
        let side = Side { address: 0, stride: [0; 3], block: 1, count: [1; 3] };
        Shape { elements: 0, width: 1, to: side, from: side }
    };

    /// Describes the first `len` bytes of both sides. Returns `None` if a count exceeds the kernel's range.
    pub(super) fn new(copy: &BlockCopy) -> Option<Shape> {
        let len = copy.len;
        let to = (copy.dst as u64, copy.dst_blocks.simplified());
        let from = (copy.src as u64, copy.src_blocks.simplified());
        let width = width(to, from, len);
        let side = |(address, side): (u64, Strided)| -> Option<Side> {
            let number = |count: u64| u32::try_from(count).ok();
            let mut count = [1; MAX_STRIDED_DIMENSIONS];
            for (count, dimension) in count.iter_mut().zip(side.dimensions) {
                *count = number(dimension.0)?;
            }
            let address = address.wrapping_add_signed(side.offset);
            Some(Side {
                address,
                stride: side.dimensions.map(|dimension| dimension.1),
                block: number(side.block / width)?,
                count,
            })
        };
        let elements = u32::try_from(len / width).ok()?;
        Some(Shape { elements, width: width as u32, to: side(to)?, from: side(from)? })
    }
}

/// Returns the largest element that divides both sides.
fn width(to: (u64, Strided), from: (u64, Strided), len: u64) -> u64 {
    let mut bits = 16 | len;
    for (address, side) in [to, from] {
        bits |= address.wrapping_add_signed(side.offset) | side.block;
        bits = side
            .dimensions
            .iter()
            .filter(|dimension| dimension.0 > 1)
            .fold(bits, |bits, dimension| bits | dimension.1 as u64);
    }
    1 << bits.trailing_zeros()
}
