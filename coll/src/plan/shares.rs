//! Shares of a reduction's data, and who gets the results.

use std::ops::Range;

/// Who gets the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Results {
    /// Each rank keeps that of its share, at the beginning of its output.
    Scattered,
    /// Every rank gets all.
    Everywhere,
    /// The root gets all.
    AtRoot(u32),
}

/// The shares of the data, in elements. `shares[r]` is rank `r`'s.
#[derive(Debug)]
pub(crate) struct Shares(Vec<Range<u64>>);

impl Shares {
    /// Divides the elements evenly.
    pub(crate) fn even(count: u64, ranks: u32) -> Shares {
        let bound = |rank: u32| (u128::from(count) * u128::from(rank) / u128::from(ranks)) as u64;
        Shares((0..ranks).map(|rank| bound(rank)..bound(rank + 1)).collect())
    }

    /// Shares of these lengths, one after the other.
    pub(crate) fn of(counts: impl IntoIterator<Item = u64>) -> Shares {
        let mut from = 0;
        let next = |count| {
            let share = from..from + count;
            from += count;
            share
        };
        Shares(counts.into_iter().map(next).collect())
    }

    /// One rank's share is everything.
    pub(crate) fn all_of(rank: u32, count: u64, ranks: u32) -> Shares {
        Shares::of((0..ranks).map(|other| if other == rank { count } else { 0 }))
    }

    /// Returns the number of shares.
    pub(crate) fn ranks(&self) -> usize {
        self.0.len()
    }

    /// Returns the length of all shares.
    pub(crate) fn len(&self) -> u64 {
        self.0.last().map_or(0, |last| last.end)
    }

    pub(crate) fn of_rank(&self, rank: u32) -> Range<u64> {
        self.0[rank as usize].clone()
    }
}

/// Cuts a range into segments of at most `most` elements.
pub(crate) fn segments(range: Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = range;
    (start..end).step_by(most.max(1) as usize).map(move |from| from..end.min(from + most.max(1)))
}
