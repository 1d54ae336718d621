//! Elements of memory, their blocks and their range.

use cableway_common_cuda::Strided;
use cableway_datatype::{Datatype, Layout, Predefined};

use super::wire::{Block, MOST_BLOCKS};
use crate::buffer::Buffer;
use crate::error::Error;

/// Elements that have bytes, relative to some address.
#[derive(Debug)]
pub(crate) struct Elements {
    layout: Layout,
    count: u64,
    len: u64,
    low: i64,
    range: u64,
}

/// Blocks that repeat.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) blocks: Vec<Block>,
    pub(crate) count: u64,
    pub(crate) extent: i64,
}

impl Elements {
    /// Describes `count` elements. Returns `None` if they have no bytes, or if a number exceeds 64 bits.
    pub(crate) fn new(layout: Layout, count: u64) -> Option<Elements> {
        let len = layout.packed_size(count).ok()?;
        let (low, range) = layout.span(count)?;
        Some(Elements { layout, count, len, low, range })
    }

    /// Rebuilds elements from blocks that a peer has sent.
    pub(crate) fn of_blocks(blocks: &[Block], count: u64, extent: i64) -> Option<Elements> {
        let lengths: Vec<i64> = blocks.iter().map(|block| i64::try_from(block.len).ok()).collect::<Option<_>>()?;
        let offsets: Vec<i64> = blocks.iter().map(|block| block.offset).collect();
        let datatype = Datatype::hindexed(&lengths, &offsets, &Predefined::Byte.datatype()).ok()?;
        Elements::new(Datatype::resized(&datatype, 0, extent).ok()?.commit(), count)
    }

    /// Returns the packed length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the offset of the lowest byte.
    pub(crate) fn low(&self) -> i64 {
        self.low
    }

    /// Returns the distance from the lowest byte to the end of the highest byte. All elements lie in this range.
    pub(crate) fn range(&self) -> u64 {
        self.range
    }

    /// Describes the elements whose lowest byte lies at `first`.
    pub(crate) fn buffer(&self, first: *const u8) -> Buffer<'_> {
        Buffer::typed(first.wrapping_offset((self.low as isize).wrapping_neg()), self.count, &self.layout)
    }

    /// Returns the elements as blocks at regular distances, relative to their lowest byte, or `None` if they are irregular.
    pub(crate) fn strided(&self) -> Option<Strided> {
        let strided = self.layout.strided(self.count)?;
        Some(Strided { offset: strided.offset.checked_sub(self.low)?, ..strided })
    }

    /// Checks that the elements can be described.
    ///
    /// # Errors
    /// There are too many blocks.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let blocks = match self.layout.strided(self.count) {
            Some(strided) => split(&strided).0.iter().fold(1, |blocks: u64, inner| blocks.saturating_mul(inner.0)),
            None => self.layout.block_count(),
        };
        if blocks <= MOST_BLOCKS as u64 { Ok(()) } else { Err(Error::TooManyBlocks { blocks, limit: MOST_BLOCKS }) }
    }

    /// Returns the elements as blocks that repeat, relative to `origin` bytes below the address.
    ///
    /// # Errors
    /// There are too many blocks.
    pub(crate) fn describe(&self, origin: i64) -> Result<Described, Error> {
        self.check()?;
        let Some(strided) = self.layout.strided(self.count) else {
            let moved = |block: cableway_datatype::Block| (block.offset.wrapping_add(origin), block.len);
            let blocks = self.layout.blocks(1).map(moved).map(|(offset, len)| Block { offset, len }).collect();
            return Ok(Described { blocks, count: self.count, extent: self.layout.extent() });
        };
        let (inner, (count, extent)) = split(&strided);
        let mut blocks = vec![Block { offset: strided.offset.wrapping_add(origin), len: strided.block }];
        for &(count, stride) in inner {
            let first = blocks.clone();
            let repeated = (1..count as i64).flat_map(|time| {
                let by = time.wrapping_mul(stride);
                first.iter().map(move |block| Block { offset: block.offset.wrapping_add(by), ..*block })
            });
            blocks.extend(repeated);
        }
        Ok(Described { blocks, count, extent })
    }
}

/// Returns the outermost dimension, and the inner ones, which it repeats.
fn split(strided: &Strided) -> (&[(u64, i64)], (u64, i64)) {
    match strided.dimensions.iter().rposition(|dimension| dimension.0 > 1) {
        Some(at) => (&strided.dimensions[..at], strided.dimensions[at]),
        None => (&[], (1, 0)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn byte() -> Datatype {
        Predefined::Byte.datatype()
    }

    fn elements(datatype: &Datatype, count: u64) -> Elements {
        Elements::new(datatype.commit(), count).unwrap()
    }

    /// Returns the offset of every byte in packing order.
    fn bytes(elements: &Elements) -> Vec<i64> {
        let blocks = elements.layout.blocks(elements.count);
        blocks.flat_map(|block| (0..block.len as i64).map(move |at| block.offset + at)).collect()
    }

    #[test]
    fn regular_elements_take_few_blocks() {
        let rows = Datatype::hvector(1_000_000, 8, 32, &byte()).unwrap();
        let described = elements(&rows, 1).describe(5).unwrap();
        let one = vec![Block { offset: 5, len: 8 }];
        assert_eq!(described, Described { blocks: one, count: 1_000_000, extent: 32 });
        let planes = Datatype::hvector(700, 1, 1 << 20, &Datatype::hvector(3, 8, 32, &byte()).unwrap()).unwrap();
        let described = elements(&planes, 1).describe(0).unwrap();
        assert_eq!((described.blocks.len(), described.count, described.extent), (3, 700, 1 << 20));
    }

    #[test]
    fn elements_without_bytes_or_beyond_64_bits_are_none() {
        let rows = Datatype::hvector(2, 8, 32, &byte()).unwrap().commit();
        assert!(Elements::new(rows.clone(), 0).is_none() && Elements::new(rows, u64::MAX).is_none());
        let block = |offset, len| Block { offset, len };
        assert!(Elements::of_blocks(&[block(0, 0)], 7, 8).is_none());
        assert!(Elements::of_blocks(&[block(0, u64::MAX)], 1, 8).is_none());
        assert!(Elements::of_blocks(&[block(i64::MAX, 2)], 1, 8).is_none());
        assert!(Elements::of_blocks(&[block(0, 4)], 2, i64::MAX).is_none());
    }

    #[test]
    fn too_many_blocks_are_an_error() {
        let many = MOST_BLOCKS as i64 + 1;
        let plane = Datatype::hvector(many, 1, 2, &byte()).unwrap();
        let planes = elements(&Datatype::hvector(2, 1, many * 4, &plane).unwrap(), 1);
        assert!(matches!(planes.describe(0), Err(Error::TooManyBlocks { .. })));
    }

    fn datatype() -> impl Strategy<Value = Datatype> {
        let irregular = prop::collection::vec((0..5_i64, -40..40_i64), 1..5).prop_map(|blocks| {
            let (lengths, offsets): (Vec<i64>, Vec<i64>) = blocks.into_iter().unzip();
            Datatype::hindexed(&lengths, &offsets, &byte()).unwrap()
        });
        let vector = |inner: BoxedStrategy<Datatype>| {
            (1..4_i64, 1..3_i64, -30..30_i64, inner)
                .prop_map(|(count, len, stride, inner)| Datatype::hvector(count, len, stride, &inner).unwrap())
        };
        let rows = vector(Just(byte()).boxed()).boxed();
        let planes = vector(rows.clone()).boxed();
        prop_oneof![irregular, rows, planes.clone(), vector(planes)]
    }

    proptest! {
        /// What a peer rebuilds has the same bytes in the same order.
        #[test]
        fn described_elements_are_rebuilt(datatype in datatype(), count in 1..5_u64, extent in -50..50_i64) {
            let layout = Datatype::resized(&datatype, 0, extent).unwrap().commit();
            let Some(elements) = Elements::new(layout, count) else { return Ok(()) };
            let Described { blocks, count, extent } = elements.describe(-elements.low()).unwrap();
            let rebuilt = Elements::of_blocks(&blocks, count, extent).unwrap();
            let expected: Vec<i64> = bytes(&elements).iter().map(|at| at - elements.low()).collect();
            prop_assert_eq!(bytes(&rebuilt), expected.clone());
            prop_assert_eq!((rebuilt.low(), rebuilt.range(), rebuilt.len()), (0, elements.range(), elements.len()));
            let end = expected.iter().max().map_or(0, |last| *last as u64 + 1);
            prop_assert_eq!((expected.iter().min(), end), (Some(&0), elements.range()));
        }
    }
}
