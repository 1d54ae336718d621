//! The bytes that describe blocks at regular distances in memory of a peer.

use cableway_common_cuda::Strided;
use memoffset::offset_of;
use zerocopy::little_endian::{I64, U64};

use super::header::layouts;

layouts! {
    /// Blocks at regular distances in packing order, with counts and strides of three dimensions. The offset counts from
    /// the first byte of the memory.
    BlocksLayout { offset: I64, block: U64, counts: [U64; 3], strides: [I64; 3] }
}

const _: () = {
    assert!(size_of::<BlocksLayout>() == 64 && offset_of!(BlocksLayout, counts) == 16);
    assert!(offset_of!(BlocksLayout, strides) == 40);
};

impl BlocksLayout {
    pub(crate) fn new(blocks: &Strided) -> BlocksLayout {
        let &Strided { offset, block, dimensions } = blocks;
        let (counts, strides) = (dimensions.map(|of| of.0.into()), dimensions.map(|of| of.1.into()));
        BlocksLayout { offset: offset.into(), block: block.into(), counts, strides }
    }

    /// Returns the blocks. Returns `None` if they have no byte, if one begins before the memory, or if a number exceeds 64
    /// bits.
    pub(crate) fn blocks(&self) -> Option<Strided> {
        let mut dimensions = [(1, 0); 3];
        for (dimension, (count, stride)) in dimensions.iter_mut().zip(self.counts.into_iter().zip(self.strides)) {
            *dimension = (count.get(), stride.get());
        }
        let blocks = Strided { offset: self.offset.get(), block: self.block.get(), dimensions };
        blocks.span().is_some_and(|(low, _)| low >= 0).then_some(blocks)
    }
}
