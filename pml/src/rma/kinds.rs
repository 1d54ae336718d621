//! What operations do to words: signals and atomic operations.

use super::key::Place;

/// How a signal changes its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalUpdate {
    /// The word becomes this value.
    Set(u64),
    /// This value is added to the word, and wraps around. So the word counts operations.
    Add(u64),
}

/// A word of 8 bytes that changes once the data of a put is there, or once that of a get is read.
#[derive(Clone, Copy, Debug)]
pub struct Signal<'k> {
    /// The word, which is aligned to 8 bytes. The memory belongs to the target.
    pub at: Place<'k>,
    /// The change.
    pub update: SignalUpdate,
}

/// The width of a word of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

/// An atomic operation. Of a word of 4 bytes, the lower half of the values counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtomicOperation {
    /// Adds, and wraps around.
    Add(u64),
    /// Stores the value.
    Swap(u64),
    /// Stores `new` if the word is `expected`.
    CompareSwap {
        /// The value that the word must have.
        expected: u64,
        /// The value that it then gets.
        new: u64,
    },
    /// And of all bits.
    And(u64),
    /// Or of all bits.
    Or(u64),
    /// Exclusive or of all bits.
    Xor(u64),
}
