//! Checks of a call's arguments.

use smallvec::SmallVec;

use super::Builder;
use crate::call::{Memory, Operands as CallOperands};
use crate::error::Error;
use crate::plan::Block;

impl Builder<'_> {
    /// Checks the operands of a reduction, and returns their length in bytes.
    pub(super) fn check(&self, call: &CallOperands) -> Result<u64, Error> {
        let &CallOperands { operation, element, count, .. } = call;
        if !operation.applies_to(element) {
            return Err(Error::NotDefined { operation, element });
        }
        let bytes = count.checked_mul(element.size() as u64).filter(|&bytes| bytes <= isize::MAX as u64);
        bytes.ok_or(Error::TooManyElements { count, element })
    }

    pub(super) fn check_root(&self, root: u32) -> Result<(), Error> {
        if root < self.me.size { Ok(()) } else { Err(Error::NoSuchRoot { root, size: self.me.size }) }
    }

    /// Checks the counts of a reduce-scatter.
    pub(super) fn check_counts(&self, counts: &[u64], count: u64) -> Result<(), Error> {
        self.check_length(counts.len(), "counts")?;
        let sum = counts.iter().fold(0_u64, |sum, &count| sum.saturating_add(count));
        if sum == count { Ok(()) } else { Err(Error::WrongSum { sum, count }) }
    }

    pub(super) fn check_length(&self, len: usize, list: &'static str) -> Result<(), Error> {
        if len == self.me.size as usize { Ok(()) } else { Err(Error::WrongLength { list, len, size: self.me.size }) }
    }

    pub(super) fn blocks(&mut self, list: &[Memory<'_>], holds: &'static str) -> Result<SmallVec<[Block; 8]>, Error> {
        self.check_length(list.len(), holds)?;
        Ok(list.iter().map(|memory| self.plan.block(memory)).collect())
    }
}
