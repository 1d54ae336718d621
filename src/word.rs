//! Words of atomic operations.

use cableway_pml::{AtomicOperation, Width};

/// A type of words that atomic operations change: `u32`, `i32`, `u64` and `i64`.
pub trait Word: sealed::Bits {}

impl<T: sealed::Bits> Word for T {}

mod sealed {
    use cableway_pml::Width;

    use crate::Data;

    pub trait Bits: Data + Copy + Default {
        const WIDTH: Width;
        fn bits(self) -> u64;
    }
}

macro_rules! words {
    ($($type:ty, $unsigned:ty, $width:ident);+) => { $(
        impl sealed::Bits for $type {
            const WIDTH: Width = Width::$width;

            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        }
    )+ };
}
words!(u32, u32, Four; i32, u32, Four; u64, u64, Eight; i64, u64, Eight);

/// An atomic operation on a word. It returns the word before.
///
/// The CPU of the memory's owner makes it. docs/one-sided.md says what it is atomic against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic<T> {
    /// Adds, and wraps around.
    Add(T),
    /// Stores the value.
    Swap(T),
    /// Stores `new` if the word is `expected`.
    CompareSwap {
        /// The value that the word must have.
        expected: T,
        /// The value that it then gets.
        new: T,
    },
    /// And of all bits.
    And(T),
    /// Or of all bits.
    Or(T),
    /// Exclusive or of all bits.
    Xor(T),
}

impl<T: Word> Atomic<T> {
    pub(crate) fn raw(self) -> AtomicOperation {
        match self {
            Atomic::Add(value) => AtomicOperation::Add(value.bits()),
            Atomic::Swap(value) => AtomicOperation::Swap(value.bits()),
            Atomic::CompareSwap { expected, new } => {
                AtomicOperation::CompareSwap { expected: expected.bits(), new: new.bits() }
            }
            Atomic::And(value) => AtomicOperation::And(value.bits()),
            Atomic::Or(value) => AtomicOperation::Or(value.bits()),
            Atomic::Xor(value) => AtomicOperation::Xor(value.bits()),
        }
    }
}
