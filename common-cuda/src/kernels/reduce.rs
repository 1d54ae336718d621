//! The argument of the kernels that reduce, as kernels/reduce.h declares it, and the classes of kernels that are never revoked.

use std::ffi::{CStr, c_void};

use super::job::{Argument, Job, Name, THREADS};
use super::one_shot::Shot;
use crate::driver::Image;
use crate::one_shot::OneShot;
use crate::reduction::{Element, MOST_DESTINATIONS, MOST_SOURCES, ReduceOperation, Reduction};

/// The bytes of a vector.
const VECTOR: u64 = 16;
/// The thread blocks that a multiprocessor has room for, as the kernels' registers permit.
const ON_EACH: u32 = 2;

/// A reduction for a kernel.
#[repr(C)]
pub(crate) struct Folding {
    job: Name,
    to: [u64; MOST_DESTINATIONS],
    from: [u64; MOST_SOURCES],
    /// 0 if nothing is kept.
    kept: u64,
    head: u64,
    vectors: u64,
    tail: u64,
    destinations: u32,
    sources: u32,
    operation: u32,
    element: u32,
    shot: Shot,
}
const _: () = assert!(size_of::<Folding>() == 320 + size_of::<Shot>());

/// A class of kernels, with a module of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Bits,
    Integers,
    Floats,
    Pairs,
    /// Exchanges without a reduction.
    OneShot,
    /// Copies of blocks from the memory of other ranks.
    Moves,
    /// Copies of blocks with gaps.
    BlockMoves,
}

impl Class {
    pub(crate) const ALL: [Class; 7] =
        [Class::Bits, Class::Integers, Class::Floats, Class::Pairs, Class::OneShot, Class::Moves, Class::BlockMoves];

    /// Returns the class of the kernel for an operation that applies to such elements.
    pub(crate) fn of(operation: ReduceOperation, element: Element) -> Class {
        match operation {
            ReduceOperation::Sum | ReduceOperation::Product | ReduceOperation::Min | ReduceOperation::Max => {
                if (element as u32) < Element::F16 as u32 { Class::Integers } else { Class::Floats }
            }
            ReduceOperation::MinLoc | ReduceOperation::MaxLoc => Class::Pairs,
            _ => Class::Bits,
        }
    }

    pub(super) fn image(self) -> Image {
        match self {
            Class::Bits => Image::ReduceBits,
            Class::Integers => Image::ReduceIntegers,
            Class::Floats => Image::ReduceFloats,
            Class::Pairs => Image::ReducePairs,
            Class::OneShot => Image::OneShot,
            Class::Moves => Image::Moves,
            Class::BlockMoves => Image::BlockMoves,
        }
    }

    pub(super) fn name(self) -> &'static CStr {
        match self {
            Class::Bits => c"cableway_reduce_bits",
            Class::Integers => c"cableway_reduce_integers",
            Class::Floats => c"cableway_reduce_floats",
            Class::Pairs => c"cableway_reduce_pairs",
            Class::OneShot => c"cableway_one_shot",
            Class::Moves => c"cableway_moves",
            Class::BlockMoves => c"cableway_block_moves",
        }
    }
}

impl Folding {
    /// A reduction of nothing.
    pub(crate) const NOTHING: Folding = Folding {
        job: Name::NONE,
        to: [0; MOST_DESTINATIONS],
        from: [0; MOST_SOURCES],
        kept: 0,
        head: 0,
        vectors: 0,
        tail: 0,
        destinations: 0,
        sources: 0,
        operation: 0,
        element: 0,
        shot: Shot::NOTHING,
    };

    /// Describes a reduction with at most [`MOST_DESTINATIONS`] destinations and [`MOST_SOURCES`] sources, whose elements
    /// are aligned.
    pub(crate) fn new(reduction: &Reduction<'_>) -> Folding {
        let (element, times) = kernel_element(reduction.operation, reduction.element);
        let (size, count) = (element.size() as u64, reduction.count * times);
        let mut from = [0; MOST_SOURCES];
        for (from, source) in from.iter_mut().zip(reduction.sources) {
            *from = *source as u64;
        }
        let mut to = [0; MOST_DESTINATIONS];
        for (to, destination) in to.iter_mut().zip(reduction.destinations) {
            *to = *destination as u64;
        }
        // The bytes up to the first vector, where all addresses reach a vector together and elements have no gaps.
        let first = to[0];
        let before = first.wrapping_neg() % VECTOR;
        let together = reduction.addresses().all(|address| (address as u64 ^ first).is_multiple_of(VECTOR));
        let dense = element.parts() == [(0, element.size())];
        let (head, vectors, tail) = if together && dense && before.is_multiple_of(size) {
            let head = (before / size).min(count);
            let each = VECTOR / size;
            (head, (count - head) / each, (count - head) % each)
        } else {
            (count, 0, 0)
        };
        Folding {
            to,
            from,
            kept: reduction.kept.map_or(0, |kept| kept as u64),
            head,
            vectors,
            tail,
            destinations: reduction.destinations.len() as u32,
            sources: reduction.sources.len() as u32,
            operation: reduction.operation as u32,
            element: element as u32,
            ..Folding::NOTHING
        }
    }

    /// Has data exchanged before the reduction. `memory` is the device address of the slots' memory.
    pub(crate) fn after(mut self, shot: &OneShot<'_>, memory: u64) -> Folding {
        self.shot = Shot::new(shot, memory);
        self
    }
}

impl Argument for Folding {
    /// Returns a block for as many vectors as it has threads, until the device is full. Only one block exchanges.
    fn blocks(&mut self, multiprocessors: u32) -> u32 {
        if !self.shot.is_nothing() {
            return 1;
        }
        let units = self.vectors.max(self.head + self.tail);
        let most = u64::from(multiprocessors.max(1)) * u64::from(ON_EACH);
        units.div_ceil(THREADS.into()).clamp(1, most) as u32
    }

    fn for_job(&mut self, job: &Job) -> *mut c_void {
        self.job = Name::of(job);
        (&raw mut *self).cast()
    }
}

/// Returns the elements that a kernel knows an operation for, and how many of them make one element.
fn kernel_element(operation: ReduceOperation, element: Element) -> (Element, u64) {
    let unsigned = match element {
        Element::I8 => Element::U8,
        Element::I16 => Element::U16,
        Element::I32 => Element::U32,
        Element::I64 => Element::U64,
        other => other,
    };
    match (operation, unsigned) {
        (ReduceOperation::Min | ReduceOperation::Max, _) => (element, 1),
        (ReduceOperation::Sum, Element::Complex32) => (Element::F32, 2),
        (ReduceOperation::Sum, Element::Complex64) => (Element::F64, 2),
        (ReduceOperation::BitAnd | ReduceOperation::BitOr | ReduceOperation::BitXor, Element::U16) => (Element::U8, 2),
        (ReduceOperation::BitAnd | ReduceOperation::BitOr | ReduceOperation::BitXor, Element::U64) => (Element::U32, 2),
        _ => (unsigned, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folding(element: Element, count: u64, to: usize, from: usize) -> (u64, u64, u64) {
        let sources = [std::ptr::without_provenance(from), std::ptr::without_provenance(from)];
        let destinations = &[std::ptr::without_provenance_mut(to)];
        let operation = if element == Element::Complex64 { ReduceOperation::Product } else { ReduceOperation::MinLoc };
        let operation = if element == Element::F32 { ReduceOperation::Sum } else { operation };
        let folding =
            Folding::new(&Reduction { operation, element, count, destinations, sources: &sources, kept: None });
        (folding.head, folding.vectors, folding.tail)
    }

    #[test]
    fn vectors_begin_where_all_addresses_are_multiples_of_their_size() {
        assert_eq!(folding(Element::F32, 100, 64, 128), (0, 25, 0));
        assert_eq!(folding(Element::F32, 100, 68, 132), (3, 24, 1));
        assert_eq!(folding(Element::F32, 2, 68, 132), (2, 0, 0));
        assert_eq!(folding(Element::F32, 100, 68, 136), (100, 0, 0));
        // An element of 16 bytes at an odd multiple of 8 never reaches a vector.
        assert_eq!(folding(Element::Complex64, 10, 64, 64), (0, 10, 0));
        assert_eq!(folding(Element::Complex64, 10, 72, 72), (10, 0, 0));
        // Gaps are not touched.
        assert_eq!(folding(Element::DoubleInt, 10, 64, 64), (10, 0, 0));
        assert_eq!(folding(Element::ShortInt, 10, 64, 64), (10, 0, 0));
        assert_eq!(folding(Element::TwoInt, 10, 68, 68), (10, 0, 0));
    }
}
