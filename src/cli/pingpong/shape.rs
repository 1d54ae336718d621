//! The layout of a message in memory: contiguous, or in the blocks of a datatype.

use std::fmt;
use std::sync::Arc;

use cableway::{Datatype, Layout, Predefined, RemoteKey, Target, parse_size};

/// The layout of a message in memory.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    Contiguous,
    Blocks(Blocks),
}

/// An element of a datatype with separate blocks.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// The text of the option.
    name: String,
    layout: Layout,
    /// The offset and length of each block in bytes, in ascending order.
    blocks: Arc<[(u64, u64)]>,
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Reads `vector:BLOCK:STRIDE:COUNT` and `indexed:BLOCK:COUNT:SEED`.
pub(crate) fn parse_datatype(text: &str) -> Result<Blocks, String> {
    let expected = || {
        "vector:BLOCK:STRIDE:COUNT or indexed:BLOCK:COUNT:SEED is expected, such as vector:64:256:16 or \
         indexed:8:1000:1"
            .to_owned()
    };
    let parts: Vec<_> = text.split(':').collect();
    let [kind, block, second, third] = parts[..] else { return Err(expected()) };
    let block = parse_size(block)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| expected());
    let stride = if kind == "vector" { parse_size(second)? } else { 0 };
    let (count, seed) = match kind {
        "vector" => (number(third)?, 0),
        "indexed" => (number(second)?, number(third)?),
        _ => return Err(expected()),
    };
    /// The most blocks of an element, so that listing them is quick.
    const MOST: u64 = 1 << 24;
    if block == 0 || count == 0 {
        return Err("a datatype without data cannot be sent: block and count must be at least 1".to_owned());
    }
    if count > MOST {
        return Err(format!("{count} blocks are too many: an element has at most {MOST}"));
    }
    let signed = |value: u64| i64::try_from(value).map_err(|_| format!("{value} does not fit"));
    let bytes = Predefined::Byte.datatype();
    let (offsets, datatype): (Vec<u64>, _) = if kind == "vector" {
        if stride < block {
            return Err(format!("blocks of {block} bytes, {stride} apart, overlap and cannot be received"));
        }
        let offsets = (0..count).map(|index| index.saturating_mul(stride)).collect();
        (offsets, Datatype::vector(signed(count)?, signed(block)?, signed(stride)?, &bytes))
    } else {
        let offsets: Vec<u64> = scattered(block, seed).take(count as usize).collect();
        let places = offsets.iter().map(|offset| signed(*offset)).collect::<Result<Vec<i64>, _>>()?;
        (offsets, Datatype::hindexed_block(signed(block)?, &places, &bytes))
    };
    let layout = datatype.map_err(|error| error.to_string())?.commit();
    let blocks = offsets.into_iter().map(|offset| (offset, block)).collect();
    Ok(Blocks { name: text.to_owned(), layout, blocks })
}

/// Returns the offsets of blocks with pseudorandom gaps of one to three blocks between them.
fn scattered(block: u64, seed: u64) -> impl Iterator<Item = u64> {
    let (mut state, mut at) = (seed, 0_u64);
    std::iter::from_fn(move || {
        // Knuth's linear congruential generator, of which the high bits are good.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = at;
        at = at.saturating_add(block.saturating_mul(2 + (state >> 33) % 3));
        Some(offset)
    })
}

impl Blocks {
    pub(crate) fn size(&self) -> u64 {
        self.layout.size()
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn extent(&self) -> u64 {
        self.layout.true_extent()
    }
}

impl Shape {
    /// The shapes of both ranks if neither has blocks.
    pub(crate) const CONTIGUOUS: [Shape; 2] = [Shape::Contiguous, Shape::Contiguous];

    /// Rounds sizes up to whole elements, and removes duplicates.
    pub(crate) fn round_up(&self, sizes: &[u64]) -> Vec<u64> {
        let Shape::Blocks(blocks) = self else { return sizes.to_vec() };
        let mut sizes: Vec<_> = sizes.iter().map(|size| size.next_multiple_of(blocks.size())).collect();
        sizes.dedup();
        sizes
    }

    /// Returns a message of `size` bytes at the beginning of a peer's registered memory.
    pub(crate) fn target<'k>(&'k self, key: &'k RemoteKey, size: u64) -> Target<'k> {
        match self {
            Shape::Contiguous => key.at(0).into(),
            Shape::Blocks(blocks) => key.at(0).typed(size / blocks.size(), blocks.layout()),
        }
    }

    /// Returns the bytes of memory that a message spans, gaps included.
    pub(crate) fn span(&self, size: u64) -> usize {
        let span = match self {
            Shape::Contiguous => size,
            Shape::Blocks(blocks) => size / blocks.size() * blocks.extent(),
        };
        usize::try_from(span).unwrap_or(usize::MAX)
    }

    /// Returns the offset and length in memory of each piece of a message.
    pub(crate) fn pieces(&self, size: u64) -> Box<dyn Iterator<Item = (usize, usize)> + '_> {
        let Shape::Blocks(blocks) = self else {
            return Box::new((size != 0).then_some((0, size as usize)).into_iter());
        };
        let extent = blocks.extent();
        Box::new((0..size / blocks.size()).flat_map(move |element| {
            let piece = move |&(offset, len): &(u64, u64)| ((element * extent + offset) as usize, len as usize);
            blocks.blocks.iter().map(piece)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn datatypes() {
        let vector = parse_datatype("vector:64:256:16").unwrap();
        assert_eq!((vector.size(), vector.extent()), (1024, 15 * 256 + 64));
        assert_eq!(vector.to_string(), "vector:64:256:16");
        for wrong in [
            "vector:64:32:2",
            "vector:0:1:1",
            "vector:1:1:0",
            "vector:1:1",
            "array:1:1:1",
            "vector:1:1:x",
            "vector:1:1:99999999999",
            "indexed:8:0:1",
            "indexed:0:8:1",
            "indexed:8:8",
            "indexed:16E:8:1",
        ] {
            assert!(parse_datatype(wrong).is_err(), "{wrong}");
        }
        let indexed = parse_datatype("indexed:8:1000:7").unwrap();
        assert_eq!((indexed.size(), indexed.to_string()), (8000, "indexed:8:1000:7".to_owned()));
        let gaps = indexed.blocks.windows(2).map(|pair| pair[1].0 - pair[0].0).collect::<HashSet<_>>();
        assert_eq!(gaps, HashSet::from([16, 24, 32]));
        assert!(format!("{:?}", indexed.layout).contains("shape: Irregular"), "{:?}", indexed.layout);
        let again = parse_datatype("indexed:8:1000:7").unwrap();
        assert!(indexed.layout == again.layout, "both ranks have the same");

        let shape = Shape::Blocks(parse_datatype("vector:2:3:2").unwrap());
        assert_eq!(shape.round_up(&[1, 2, 4, 5, 8]), [4, 8]);
        assert_eq!(shape.span(8), 10);
        assert_eq!(shape.pieces(8).collect::<Vec<_>>(), [(0, 2), (3, 2), (5, 2), (8, 2)]);
        assert_eq!(Shape::Contiguous.pieces(0).count(), 0);
        assert_eq!(Shape::Contiguous.pieces(5).collect::<Vec<_>>(), [(0, 5)]);
    }
}
