//! The kernels that reduce: what `common-cuda/kernels/reduce_*.cu` do, block by block. The arithmetic is written anew,
//! by the expressions of docs/collectives.md.

use crate::driver::crash;
use crate::kernel_memory::{Job, Memory, THREADS};
use crate::one_shot::Shot;
use crate::reduce_numbers::{Operation, fold};

const VECTOR: u64 = 16;

/// The operations, by their numbers in the argument.
const OPERATIONS: [Operation; 12] = [
    Operation::Sum,
    Operation::Product,
    Operation::Min,
    Operation::Max,
    Operation::And,
    Operation::Or,
    Operation::Xor,
    Operation::BitAnd,
    Operation::BitOr,
    Operation::BitXor,
    Operation::MinLoc,
    Operation::MaxLoc,
];

/// The modules, each of which knows some operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Bits,
    Integers,
    Floats,
    Pairs,
    /// Exchanges without a reduction.
    OneShot,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Reduction {
    pub(crate) job: Job,
    to: [u64; 16],
    from: [u64; 16],
    kept: u64,
    head: u64,
    vectors: u64,
    tail: u64,
    destinations: u32,
    sources: u32,
    operation: u32,
    element: u32,
    pub(crate) shot: Shot,
}

/// The bytes of an element, by its number.
const SIZES: [u64; 20] = [1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 8, 16, 8, 16, 16, 8, 8, 8, 16];
/// The number that its address is a multiple of.
const ALIGNMENTS: [u64; 20] = [1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 4, 8, 4, 8, 8, 4, 4, 4, 8];

impl Reduction {
    /// Does the work of one block of threads.
    pub(crate) fn run(&self, class: Class, block: u64, blocks: u64, memory: &mut Memory) {
        if class == Class::OneShot {
            return;
        }
        let number = self.element as usize;
        let known = self.knows(class) && (2..=16).contains(&self.sources) && (1..=16).contains(&self.destinations);
        let (Some(&size), Some(&operation), true) = (SIZES.get(number), OPERATIONS.get(self.operation as usize), known)
        else {
            crash("a kernel's reduction, which it does not know, at", self.to[0] as usize);
        };
        let threads = u64::from(THREADS);
        let steps = |count: u64| (block * threads..count).step_by((blocks * threads) as usize);
        for first in steps(self.vectors) {
            for unit in first..(first + threads).min(self.vectors) {
                let at = self.head * size + unit * VECTOR;
                self.aligned(at, VECTOR);
                for offset in (at..at + VECTOR).step_by(size as usize) {
                    self.element(operation, offset, memory);
                }
            }
        }
        let count = self.head + self.tail;
        for first in steps(count) {
            for unit in first..(first + threads).min(count) {
                let behind = if unit < self.head { 0 } else { self.vectors * VECTOR };
                self.aligned(unit * size + behind, ALIGNMENTS[number]);
                self.element(operation, unit * size + behind, memory);
            }
        }
    }

    /// Checks whether the kernel of a class has code for the operation and the element.
    fn knows(&self, class: Class) -> bool {
        match (class, self.operation, self.element) {
            (Class::Integers, 0..=1, element) => (4..=7).contains(&element),
            (Class::Integers, 2..=3, element) => element <= 7,
            (Class::Floats, 0..=3, 8..=10) | (Class::Floats, 1, 11..=12) => true,
            (Class::Bits, 4..=6, element) => (4..=7).contains(&element),
            (Class::Bits, 7..=9, element) => element == 4 || element == 6,
            (Class::Pairs, 10..=11, element) => (13..=19).contains(&element),
            _ => false,
        }
    }

    fn aligned(&self, offset: u64, width: u64) {
        let (sources, destinations) = (&self.from[..self.sources as usize], &self.to[..self.destinations as usize]);
        let odd = |address: &&u64| !(*address + offset).is_multiple_of(width);
        let kept = Some(&self.kept).filter(|kept| **kept != 0);
        if let Some(address) = sources.iter().chain(destinations).chain(kept).find(odd) {
            crash("a kernel's element, which is not aligned, at", (address + offset) as usize);
        }
    }

    fn element(&self, operation: Operation, offset: u64, memory: &mut Memory) {
        let mut folded = [0; 16];
        for (index, source) in self.from[..self.sources as usize].iter().enumerate() {
            let mut next = [0; 16];
            self.touch(source + offset, memory, |part, at| {
                // SAFETY: a part of an element within a range that is kept.
                unsafe { std::ptr::copy_nonoverlapping(at, next[part.0..].as_mut_ptr(), part.1) };
            });
            if index == 0 && self.kept != 0 {
                self.touch(self.kept + offset, memory, |part, at| {
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(next[part.0..].as_ptr(), at, part.1) };
                });
            }
            folded = if index == 0 { self.first(operation, next) } else { fold(operation, self.element, folded, next) };
        }
        for to in &self.to[..self.destinations as usize] {
            self.touch(to + offset, memory, |part, at| {
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(folded[part.0..].as_ptr(), at, part.1) };
            });
        }
    }

    /// The kernel takes the truth of the first source's elements, as of the others'.
    fn first(&self, operation: Operation, element: [u8; 16]) -> [u8; 16] {
        match operation {
            Operation::And | Operation::Or | Operation::Xor => fold(Operation::Or, self.element, element, [0; 16]),
            _ => element,
        }
    }

    /// Calls for each part of an element that is no gap.
    fn touch(&self, address: u64, memory: &mut Memory, mut each: impl FnMut((usize, usize), *mut u8)) {
        let size = SIZES[self.element as usize] as usize;
        let parts: [(usize, usize); 2] = match self.element {
            14 | 15 => [(0, 8), (8, 4)],
            17 => [(0, 2), (4, 4)],
            _ => [(0, size), (0, 0)],
        };
        for part in parts.into_iter().filter(|part| part.1 != 0) {
            each(part, memory.reach(address + part.0 as u64, part.1 as u64) as *mut u8);
        }
    }
}
