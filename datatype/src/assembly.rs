//! Combines copies of datatypes, with every overflow checked. All constructors use it.

use std::borrow::Cow;

use crate::bounds::Bounds;
use crate::datatype::Datatype;
use crate::error::Error;
use crate::node::{Node, Placed};
use crate::normal::compress;
use crate::regular::Repetition;

/// A type under construction.
pub(crate) struct Assembly {
    constructor: &'static str,
    size: u64,
    bounds: Bounds,
    items: Vec<Placed>,
}

impl Assembly {
    pub(crate) fn new(constructor: &'static str) -> Self {
        Assembly { constructor, size: 0, bounds: Bounds::EMPTY, items: Vec::new() }
    }

    /// Adds copies of `old`, the first at `displacement`, repeated by each of `repetitions` in turn, the innermost
    /// first. A count of 0 adds nothing.
    pub(crate) fn add(&mut self, old: &Datatype, displacement: i128, repetitions: &[Repetition]) -> Result<(), Error> {
        if repetitions.iter().any(|repetition| repetition.count == 0) {
            return Ok(());
        }
        let (mut copies, mut first, mut last) = (1_u64, displacement, displacement);
        for repetition in repetitions {
            copies = copies.checked_mul(repetition.count).ok_or_else(|| self.overflow("size"))?;
            let reach = i128::from(repetition.count - 1)
                .checked_mul(repetition.stride)
                .ok_or_else(|| self.overflow("extent"))?;
            let side = if reach < 0 { &mut first } else { &mut last };
            *side = side.checked_add(reach).ok_or_else(|| self.overflow("extent"))?;
        }
        // Half of the range exceeds every bound that fits, and leaves room for the sums below.
        if first < i128::MIN / 2 || last > i128::MAX / 2 {
            return Err(self.overflow("extent"));
        }
        self.bounds = self.bounds.union(old.bounds().spread(first, last));
        self.size = old
            .size()
            .checked_mul(copies)
            .and_then(|added| self.size.checked_add(added))
            .filter(|size| i64::try_from(*size).is_ok())
            .ok_or_else(|| self.overflow("size"))?;
        if !self.bounds.fits() {
            return Err(self.overflow("extent"));
        }
        let Some(pattern) = old.pattern() else { return Ok(()) };
        let mut node = pattern.node.clone();
        for repetition in repetitions {
            // With more than one repetition the stride matters, and it fits because the bounds do.
            node = Node::repeat(repetition.count, repetition.stride as i64, node);
        }
        self.items.push(Placed { offset: (displacement + i128::from(pattern.offset)) as i64, node });
        Ok(())
    }

    pub(crate) fn finish(self) -> Datatype {
        Datatype::new(Cow::Borrowed(self.constructor), self.size, self.bounds, compress(self.items))
    }

    pub(crate) fn overflow(&self, quantity: &'static str) -> Error {
        Error::Overflow { constructor: self.constructor, quantity }
    }
}
