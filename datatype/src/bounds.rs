//! Bounds of a type map: the range of its data, and its explicit bounds (markers).

/// Bounds in bytes, relative to the buffer's address. They are `i128`, so that arithmetic on 64-bit arguments never
/// wraps. [`Bounds::fits`] tells whether the result is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The first byte of data and the byte after the last; `None` for a map without data.
    pub(crate) data: Option<(i128, i128)>,
    /// The lowest lower-bound marker and the highest upper-bound marker. They override the data's bounds, as MPI
    /// defines.
    pub(crate) markers: Option<(i128, i128)>,
    /// The largest alignment of a basic type in the map.
    pub(crate) alignment: u64,
}

impl Bounds {
    pub(crate) const EMPTY: Bounds = Bounds { data: None, markers: None, alignment: 1 };

    /// Returns the lower bound.
    pub(crate) fn lower(&self) -> i128 {
        self.markers.or(self.data).map_or(0, |(lower, _)| lower)
    }

    /// Returns the upper bound. Without a marker, the extent is rounded up to the alignment.
    pub(crate) fn upper(&self) -> i128 {
        match (self.markers, self.data) {
            (Some((_, upper)), _) => upper,
            (None, Some((lower, upper))) => {
                let alignment = i128::from(self.alignment);
                lower + (upper - lower + alignment - 1) / alignment * alignment
            }
            (None, None) => 0,
        }
    }

    /// Returns the bounds of copies at displacements from `first` to `last`.
    pub(crate) fn spread(self, first: i128, last: i128) -> Self {
        let spread = |(lower, upper): (i128, i128)| (lower + first, upper + last);
        Bounds { data: self.data.map(spread), markers: self.markers.map(spread), alignment: self.alignment }
    }

    /// Returns the bounds of both maps together.
    pub(crate) fn union(self, other: Self) -> Self {
        let hull = |a: Option<(i128, i128)>, b: Option<(i128, i128)>| match (a, b) {
            (Some((al, au)), Some((bl, bu))) => Some((al.min(bl), au.max(bu))),
            (one, None) | (None, one) => one,
        };
        Bounds {
            data: hull(self.data, other.data),
            markers: hull(self.markers, other.markers),
            alignment: self.alignment.max(other.alignment),
        }
    }

    /// Checks whether every bound, and the distance between any two, fits in an `i64`.
    pub(crate) fn fits(&self) -> bool {
        let points = [self.data.map(|d| d.0), self.data.map(|d| d.1), Some(self.lower()), Some(self.upper())];
        let low = points.iter().flatten().copied().min().unwrap_or(0);
        let high = points.iter().flatten().copied().max().unwrap_or(0);
        i64::try_from(low).is_ok() && i64::try_from(high).is_ok() && i64::try_from(high - low).is_ok()
    }
}
