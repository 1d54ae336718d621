//! Parts of a buffer, one for each rank.

use cableway_coll::Memory;
use cableway_pml::Buffer;

use super::Member;
use crate::Error;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::error::Collective;

/// The parts of a buffer that belong to each rank. They are counted in the buffer's elements: the values of a slice, the
/// bytes of device memory and of [`RawBuffer`](crate::RawBuffer)s, the elements of a datatype or of
/// [`Elements`](crate::Elements).
///
/// Parts to receive into must not overlap or interleave.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    counts: &'a [usize],
    displacements: Option<&'a [usize]>,
}

impl<'a> Parts<'a> {
    /// Describes parts of `counts` elements that follow each other, the first one at the beginning of the buffer.
    pub fn new(counts: &'a [usize]) -> Self {
        Parts { counts, displacements: None }
    }

    /// Describes parts of `counts` elements, each at the element of `displacements`.
    pub fn at(counts: &'a [usize], displacements: &'a [usize]) -> Self {
        Parts { counts, displacements: Some(displacements) }
    }
}

/// A buffer, and how many bytes one of its elements has if it has no layout.
#[derive(Clone, Copy)]
pub(crate) struct Region<'a> {
    buffer: Buffer<'a>,
    unit: u64,
}

/// A buffer with a part for each rank: those that are named, or parts of the same length.
pub(crate) type Divided<'a, 'p> = (Region<'a>, Option<Parts<'p>>);

/// Describes a buffer to send.
pub(crate) fn region(buffer: &(impl SendBuffer + ?Sized)) -> Result<Region<'_>, Error> {
    Ok(Region { unit: buffer.unit(), buffer: buffer.readable()? })
}

/// Describes a buffer to receive into.
pub(crate) fn region_mut(buffer: &mut (impl RecvBuffer + ?Sized)) -> Result<Region<'_>, Error> {
    Ok(Region { unit: buffer.unit(), buffer: buffer.writable()? })
}

/// Describes a buffer to send with a part for each rank.
pub(crate) fn divided<'a, 'p>(
    buffer: &'a (impl SendBuffer + ?Sized),
    parts: Option<Parts<'p>>,
) -> Result<Divided<'a, 'p>, Error> {
    Ok((region(buffer)?, parts))
}

/// Describes a buffer to receive into with a part for each rank.
pub(crate) fn divided_mut<'a, 'p>(
    buffer: &'a mut (impl RecvBuffer + ?Sized),
    parts: Option<Parts<'p>>,
) -> Result<Divided<'a, 'p>, Error> {
    Ok((region_mut(buffer)?, parts))
}

impl<'a> Region<'a> {
    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.len()
    }

    pub(super) fn memory(&self) -> Memory<'a> {
        Memory { address: self.buffer.address(), count: self.buffer.count(), layout: self.buffer.layout() }
    }

    fn elements(&self) -> u64 {
        if self.buffer.layout().is_some() { self.buffer.count() } else { self.buffer.count() / self.unit.max(1) }
    }

    /// Returns `count` elements from element `first` on, which lie within the region.
    fn range(&self, first: u64, count: u64) -> Memory<'a> {
        let memory = self.memory();
        match memory.layout {
            Some(layout) => {
                let offset = (first as i64).wrapping_mul(layout.extent());
                Memory { address: memory.address.wrapping_offset(offset as isize), count, ..memory }
            }
            None => Memory {
                address: memory.address.wrapping_add((first * self.unit) as usize),
                count: count * self.unit,
                ..memory
            },
        }
    }

    /// Divides the region into a part of the same length for each rank.
    pub(super) fn evenly(&self, member: Member, operation: Collective) -> Result<Vec<Memory<'a>>, Error> {
        let (elements, size) = (self.elements(), u64::from(member.size));
        if !elements.is_multiple_of(size) {
            let reason = format!("{elements} elements cannot be divided evenly among {size} ranks");
            return Err(operation.refused(reason));
        }
        let count = elements / size;
        let parts: Vec<_> = (0..size).map(|rank| self.range(rank * count, count)).collect();
        Ok(parts)
    }

    /// Returns the parts of all ranks.
    pub(super) fn divide(
        &self,
        parts: Parts<'_>,
        member: Member,
        operation: Collective,
    ) -> Result<Vec<Memory<'a>>, Error> {
        let size = member.size as usize;
        for (list, what) in [(Some(parts.counts), "counts"), (parts.displacements, "displacements")] {
            if let Some(list) = list.filter(|list| list.len() != size) {
                let len = list.len();
                return Err(operation.failed(cableway_coll::Error::WrongLength { list: what, len, size: member.size }));
            }
        }
        let (elements, mut next) = (self.elements(), 0_u64);
        let mut memory = Vec::with_capacity(size);
        for (rank, &count) in parts.counts.iter().enumerate() {
            let (first, count) = (parts.displacements.map_or(next, |list| list[rank] as u64), count as u64);
            next = first.saturating_add(count);
            if next > elements {
                return Err(operation.refused(format!(
                    "the part of rank {rank} ends at element {next}, and the buffer has {elements}"
                )));
            }
            memory.push(self.range(first, count));
        }
        Ok(memory)
    }
}

/// Checks that parts to receive into are apart: messages write to them at the same time.
pub(super) fn check_apart(parts: &[Memory<'_>], operation: Collective) -> Result<(), Error> {
    let mut ranges: Vec<(i128, i128, usize)> = parts
        .iter()
        .enumerate()
        .filter_map(|(rank, part)| {
            let (offset, len) = match part.layout {
                None => (0, part.count),
                Some(layout) => layout.span(part.count)?,
            };
            let from = part.address as usize as i128 + i128::from(offset);
            (len > 0).then_some((from, from + i128::from(len), rank))
        })
        .collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[1].0 < pair[0].1) {
        Some(pair) => Err(operation.refused(format!(
            "the parts of ranks {} and {} overlap in the memory to receive into",
            pair[0].2, pair[1].2
        ))),
        None => Ok(()),
    }
}
