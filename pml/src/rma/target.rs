//! What a put or get reaches in registered memory: a run of bytes, or elements of a layout.

use cableway_common_cuda::Strided;
use cableway_datatype::Layout;

use super::key::Place;
use super::registry::Span;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::refusal::Refusal;
use crate::shapes::Elements;

/// The part of registered memory that a put or get reaches: as many bytes as the buffer has, from a place on, or elements of
/// a layout.
#[derive(Clone, Copy, Debug)]
pub struct Target<'k> {
    place: Place<'k>,
    elements: Option<(u64, &'k Layout)>,
}

impl<'k> From<Place<'k>> for Target<'k> {
    fn from(place: Place<'k>) -> Self {
        Target { place, elements: None }
    }
}

impl<'k> Place<'k> {
    /// Returns `count` elements of a layout, whose offsets count from this place. They have as many bytes of data as the
    /// buffer of the put or get. Elements of a put do not overlap.
    pub fn typed(self, count: u64, layout: &'k Layout) -> Target<'k> {
        Target { place: self, elements: Some((count, layout)) }
    }
}

impl<'k> Target<'k> {
    /// Returns the place from which offsets count.
    pub fn place(&self) -> Place<'k> {
        self.place
    }

    /// Finds the first byte that `len` bytes of data reach, and the elements, unless they are one run of bytes.
    ///
    /// # Errors
    /// The elements have another length, or do not lie within the memory.
    #[inline]
    pub(super) fn find(&self, len: u64) -> Result<(Place<'k>, Option<Box<Elements>>), Error> {
        match self.elements {
            None => Ok((self.place, None)),
            Some(elements) => self.find_elements(elements, len),
        }
    }

    fn find_elements(
        &self,
        (count, layout): (u64, &Layout),
        len: u64,
    ) -> Result<(Place<'k>, Option<Box<Elements>>), Error> {
        let Place { key, offset } = self.place;
        let target = layout.packed_size(count)?;
        if target != len {
            return Err(Error::UnequalBuffers { origin: len, target });
        }
        if len == 0 {
            return Ok((self.place, None));
        }
        let outside = || Error::OutsideRegistration { offset, len, registered: key.len() };
        let elements = Elements::new(layout.clone(), count).ok_or_else(outside)?;
        let first = offset.checked_add_signed(elements.low()).ok_or_else(outside)?;
        if !key.covers(first, elements.range()) {
            return Err(outside());
        }
        elements.check()?;
        let run = layout.contiguous_span(count).is_some();
        Ok((key.at(first), (!run).then(|| Box::new(elements))))
    }
}

/// Returns the range that elements of a peer's ask reach, which the owner checks. Their offsets count from the span's.
pub(super) fn range(span: &Span, elements: &Elements) -> Result<Span, Refusal> {
    if elements.len() != span.len {
        return Err(Refusal::Incomplete);
    }
    let offset = span.offset.checked_add_signed(elements.low()).ok_or(Refusal::OutOfRange)?;
    Ok(Span { offset, len: elements.range(), ..*span })
}

/// Describes bytes of registered memory, the first of which is at an address: elements, or one run.
pub(super) fn buffer(first: *const u8, len: u64, elements: Option<&Elements>) -> Buffer<'_> {
    match elements {
        Some(elements) => elements.buffer(first),
        None => Buffer::bytes(first, len),
    }
}

/// Describes the bytes of a span as blocks relative to the first registered byte, or returns `None` if they are irregular.
pub(super) fn strided(span: &Span, elements: Option<&Elements>) -> Option<Strided> {
    let blocks = match elements {
        Some(elements) => elements.strided()?,
        None => Strided::run(span.len),
    };
    Some(Strided { offset: blocks.offset.checked_add(i64::try_from(span.offset).ok()?)?, ..blocks })
}

#[cfg(test)]
mod tests {
    use cableway_datatype::{Datatype, Predefined};
    use zerocopy::FromZeros;

    use super::super::key::{Described, Name, RemoteKey};
    use super::*;

    fn key(len: u64) -> RemoteKey {
        let class = cableway_common_cuda::MemoryClass::Host;
        let described = Described { base: 0, len, rank: 0, class, device: None, mappable: false };
        RemoteKey::new(&described, Name::new_zeroed())
    }

    fn rows(count: i64, stride: i64) -> Datatype {
        Datatype::hvector(count, 4, stride, &Predefined::Byte.datatype()).unwrap()
    }

    #[test]
    fn elements_outside_the_memory_are_errors_of_the_caller() {
        let key = key(64);
        let find = |offset, count, stride, elements| {
            let layout = Datatype::resized(&rows(count, stride), 0, 16).unwrap().commit();
            let len = 4 * count as u64 * elements;
            key.at(offset).typed(elements, &layout).find(len).map(|(place, _)| place.offset)
        };
        assert_eq!(find(0, 4, 16, 1).unwrap(), 0);
        assert_eq!(find(12, 4, 16, 1).unwrap(), 12);
        assert_eq!(find(60, 4, -16, 1).unwrap(), 12);
        assert_eq!(find(0, 1, 0, 4).unwrap(), 0);
        // Only the place from which offsets count lies outside.
        let before = Datatype::hindexed(&[4], &[-16], &Predefined::Byte.datatype()).unwrap().commit();
        assert!(key.at(76).typed(1, &before).find(4).is_ok_and(|(place, _)| place.offset == 60));
        assert!(key.at(77).typed(1, &before).find(4).is_err() && key.at(15).typed(1, &before).find(4).is_err());
        for (offset, count, stride, elements) in [
            (13, 4, 16, 1),
            (61, 4, -16, 1),
            (47, 4, -16, 1),
            (0, 2, 61, 1),
            (0, 1, 0, 5),
            (u64::MAX, 2, 16, 1),
            (u64::MAX - 2, 1, 0, 1),
            (0, 2, i64::MAX / 4, 1),
            (0, 2, i64::MIN / 4, 1),
            (0, 1, 0, 1 << 60),
        ] {
            let found = find(offset, count, stride, elements);
            assert!(
                matches!(found, Err(Error::OutsideRegistration { registered: 64, .. })),
                "{offset} {count} {stride} {elements}: {found:?}"
            );
        }
    }

    #[test]
    fn elements_of_another_length_are_errors() {
        let (key, layout) = (key(64), rows(2, 16).commit());
        let target = key.at(0).typed(1, &layout);
        assert!(matches!(target.find(7), Err(Error::UnequalBuffers { origin: 7, target: 8 })));
        assert!(target.find(8).is_ok_and(|(_, elements)| elements.is_some()));
        assert!(key.at(99).typed(0, &layout).find(0).is_ok_and(|(place, _)| place.offset == 99));
        // One run needs no elements.
        let run = rows(4, 4).commit();
        assert!(
            key.at(8).typed(1, &run).find(16).is_ok_and(|(place, elements)| place.offset == 8 && elements.is_none())
        );
    }

    #[test]
    fn the_owner_refuses_what_a_caller_could_not_ask() {
        let elements = Elements::new(rows(3, -16).commit(), 1).unwrap();
        let span = |offset, len| Span { name: Name::new_zeroed(), offset, len };
        assert_eq!(range(&span(32, 12), &elements), Ok(span(0, 36)));
        assert_eq!(range(&span(31, 12), &elements), Err(Refusal::OutOfRange));
        assert_eq!(range(&span(32, 11), &elements), Err(Refusal::Incomplete));
    }
}
