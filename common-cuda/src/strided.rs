//! Bytes in blocks at regular distances, which a kernel copies without a list of the blocks.

/// Dimensions of a [`Strided`].
pub const MAX_STRIDED_DIMENSIONS: usize = 3;

/// Blocks of one length at regular distances, in packing order, relative to some address. One run of bytes is a single
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strided {
    /// The bytes from the address to the first block in packing order.
    pub offset: i64,
    /// The bytes of a block; not 0.
    pub block: u64,
    /// Repetitions and their distances in bytes, the innermost first. Unused dimensions have a count of 1.
    pub dimensions: [(u64, i64); MAX_STRIDED_DIMENSIONS],
}

impl Strided {
    /// Returns one run of `len` bytes from the address on.
    pub const fn run(len: u64) -> Strided {
        Strided { offset: 0, block: len, dimensions: [(1, 0); MAX_STRIDED_DIMENSIONS] }
    }

    /// Returns the bytes of all blocks, or `None` if there are no blocks or the number exceeds 64 bits.
    pub fn size(&self) -> Option<u64> {
        let mut counts = self.dimensions.iter().map(|dimension| dimension.0);
        counts.try_fold(self.block, u64::checked_mul).filter(|size| *size != 0)
    }

    /// Returns the range of all blocks: the offset of its first byte, and its length. Returns `None` if there are no
    /// blocks or a number exceeds 64 bits.
    pub fn span(&self) -> Option<(i64, u64)> {
        self.size()?;
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset) + i128::from(self.block));
        for (count, stride) in self.dimensions {
            let reach = i128::from(count - 1).checked_mul(i128::from(stride))?;
            low = low.checked_add(reach.min(0))?;
            high = high.checked_add(reach.max(0))?;
        }
        i64::try_from(high).ok()?;
        Some((i64::try_from(low).ok()?, u64::try_from(high - low).ok()?))
    }

    /// Returns the range of all blocks ([`span`](Self::span)), and the same blocks relative to its first byte.
    pub fn within_span(&self) -> Option<(i64, u64, Strided)> {
        let (low, len) = self.span()?;
        Some((low, len, Strided { offset: self.offset.checked_sub(low)?, ..*self }))
    }

    /// Returns the range of all blocks, from the address on, if they hold at least `len` bytes and none begins before the
    /// address: the offset of its first byte, and its length.
    pub fn range_of(&self, len: u64) -> Option<(u64, usize)> {
        if self.size()? < len {
            return None;
        }
        let (low, span) = self.span()?;
        let range = (u64::try_from(low).ok()?, usize::try_from(span).ok()?);
        range.0.checked_add(span).map(|_| range)
    }

    /// Returns the same blocks without dimensions that repeat once or only continue another one.
    pub(crate) fn simplified(&self) -> Strided {
        let mut simple = Strided { dimensions: [(1, 0); MAX_STRIDED_DIMENSIONS], ..*self };
        let mut used: usize = 0;
        for (count, stride) in self.dimensions.into_iter().filter(|dimension| dimension.0 > 1) {
            if used == 0 && i128::from(stride) == i128::from(simple.block) {
                simple.block = simple.block.saturating_mul(count);
                continue;
            }
            if let Some(inner) = used.checked_sub(1).map(|last| &mut simple.dimensions[last])
                && i128::from(stride) == i128::from(inner.0) * i128::from(inner.1)
            {
                inner.0 = inner.0.saturating_mul(count);
                continue;
            }
            simple.dimensions[used] = (count, stride);
            used += 1;
        }
        simple
    }

    /// Returns the offset of the byte at a packed position, and the number of bytes left in its block.
    fn find(&self, position: u64) -> (i64, u64) {
        let within = position % self.block;
        let mut index = position / self.block;
        let mut at = self.offset.wrapping_add(within as i64);
        for (count, stride) in self.dimensions {
            at = at.wrapping_add(((index % count) as i64).wrapping_mul(stride));
            index /= count;
        }
        (at, self.block - within)
    }
}

/// Rows of a copy: offsets and pitches of both sides, width, number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) to: (i64, usize),
    pub(crate) from: (i64, usize),
    pub(crate) width: usize,
    pub(crate) rows: usize,
}

/// Visits the first `len` packed bytes of both sides as rows for copy engines. Both sides have at least that many.
pub(crate) fn rows(to: &Strided, from: &Strided, len: u64, each: impl FnMut(Rows)) {
    rows_from((to, 0), (from, 0), len, each);
}

/// Visits `len` packed bytes of both sides as rows, from separate packed positions.
pub(crate) fn rows_from(
    (to, to_first): (&Strided, u64),
    (from, from_first): (&Strided, u64),
    len: u64,
    mut each: impl FnMut(Rows),
) {
    let mut position = 0;
    while position < len {
        let (to_at, to_left) = to.find(to_first + position);
        let (from_at, from_left) = from.find(from_first + position);
        let width = to_left.min(from_left).min(len - position);
        let row = |rows| Rows {
            to: (to_at, pitch(to, width).unwrap_or(0)),
            from: (from_at, pitch(from, width).unwrap_or(0)),
            width: width as usize,
            rows: rows as usize,
        };
        // As many rows as have the same distance on both sides.
        let regular = pitch(to, width).is_some() && pitch(from, width).is_some();
        let left = rows_left(to, to_first + position, width).min(rows_left(from, from_first + position, width));
        let more = left.min((len - position) / width);
        let now = if regular { more.max(1) } else { 1 };
        each(row(now));
        position += now * width;
    }
}

/// Returns the distance of rows of `width` bytes if a 2-D copy supports it.
fn pitch(side: &Strided, width: u64) -> Option<usize> {
    if side.block != width {
        return side.block.is_multiple_of(width).then_some(width as usize);
    }
    let stride = u64::try_from(side.dimensions[0].1).ok()?;
    (stride >= width || side.dimensions[0].0 == 1).then_some(stride.max(width) as usize)
}

/// Counts the consecutive rows of `width` bytes at that distance from a position on.
fn rows_left(side: &Strided, position: u64, width: u64) -> u64 {
    if side.block != width {
        return (side.block - position % side.block) / width;
    }
    if !position.is_multiple_of(width) {
        return 1;
    }
    side.dimensions[0].0 - position / width % side.dimensions[0].0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(side: &Strided) -> Vec<i64> {
        (0..side.size().unwrap()).map(|position| side.find(position).0).collect()
    }

    fn check(to: &Strided, from: &Strided, len: u64) -> usize {
        let first = from.size().unwrap() - len;
        check_from((to, 0), (from, first), len);
        check_from((to, 0), (from, 0), len)
    }

    fn check_from((to, to_first): (&Strided, u64), (from, from_first): (&Strided, u64), len: u64) -> usize {
        let (mut pairs, mut calls) = (Vec::new(), 0);
        rows_from((to, to_first), (from, from_first), len, |rows| {
            calls += 1;
            for row in 0..rows.rows {
                for byte in 0..rows.width {
                    let at = |side: (i64, usize)| side.0 + (row * side.1 + byte) as i64;
                    pairs.push((at(rows.to), at(rows.from)));
                }
            }
        });
        let (to_offsets, from_offsets) = (offsets(to), offsets(from));
        let pairs_of = to_offsets[to_first as usize..].iter().copied().zip(from_offsets[from_first as usize..].iter());
        let expected: Vec<_> = pairs_of.map(|(to, from)| (to, *from)).take(len as usize).collect();
        assert_eq!(pairs, expected, "{to:?} {from:?} from {to_first} and {from_first} on");
        calls
    }

    #[test]
    fn rows_cover_every_byte_once_and_in_order() {
        let vector = Strided { offset: 5, block: 8, dimensions: [(6, 32), (1, 0), (1, 0)] };
        let cube = Strided { offset: 0, block: 8, dimensions: [(3, 16), (2, 100), (1, 0)] };
        let back = Strided { offset: 400, block: 4, dimensions: [(12, -9), (1, 0), (1, 0)] };
        let deep = Strided { offset: 0, block: 2, dimensions: [(2, 3), (3, 11), (4, 50)] };
        let run = Strided::run(48);
        assert_eq!(check(&vector, &run, 48), 1);
        assert_eq!(check(&run, &vector, 48), 1);
        assert_eq!(check(&vector, &vector, 48), 1);
        assert_eq!(check(&cube, &run, 48), 2);
        for to in [vector, cube, back, deep, run] {
            for from in [vector, cube, back, deep, run] {
                for len in [1, 3, 8, 31, 47, 48] {
                    check(&to, &from, len);
                }
            }
        }
    }

    #[test]
    fn a_span_holds_all_blocks_and_nothing_overflows() {
        let back = Strided { offset: 40, block: 4, dimensions: [(5, -9), (2, 100), (1, 0)] };
        assert_eq!(back.span(), Some((4, 4 * 9 + 100 + 4)));
        assert_eq!(Strided::run(7).span(), Some((0, 7)));
        assert_eq!(Strided::run(0).span(), None);
        let huge = Strided { offset: i64::MAX, block: u64::MAX, dimensions: [(u64::MAX, i64::MIN); 3] };
        assert_eq!((huge.size(), huge.span()), (None, None));
        let far = Strided { offset: 0, block: 1, dimensions: [(1 << 40, i64::MAX), (1, 0), (1, 0)] };
        assert_eq!(far.span(), None);
    }

    #[test]
    fn continuing_dimensions_are_joined() {
        let dense = Strided { offset: 0, block: 4, dimensions: [(8, 4), (3, 64), (2, 192)] };
        assert_eq!(dense.simplified(), Strided { offset: 0, block: 32, dimensions: [(6, 64), (1, 0), (1, 0)] });
        assert_eq!(offsets(&dense), offsets(&dense.simplified()));
        let run = Strided { offset: 0, block: 4, dimensions: [(8, 4), (1, 7), (2, 32)] };
        assert_eq!(run.simplified(), Strided::run(64));
    }
}
