//! Operations of a stream on words of memory.

/// When a stream that waits for a word goes on. `word` is the word's content, `value` the operation's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitCondition {
    /// `word - value`, computed with wrap-around, is not negative. So the comparison is cyclic.
    GreaterOrEqual,
    /// `word == value`.
    Equal,
    /// `word & value` has a bit that is set.
    And,
    /// `word | value` has a bit that is not set.
    Nor,
}

/// What a stream does with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordAccess {
    /// Writes the value. It becomes visible after all earlier work of the stream.
    Write,
    /// Waits until the condition holds. Later work of the stream begins after that.
    Wait(WaitCondition),
}

/// An operation of a stream on an aligned word in device memory or in registered host memory.
#[derive(Clone, Copy, Debug)]
pub struct WordOperation {
    /// The word's address, as the device sees it: a multiple of its size.
    pub address: u64,
    /// The value to write or to compare with; its lower half for a word of 32 bits.
    pub value: u64,
    /// True for a word of 64 bits, false for 32.
    pub wide: bool,
    /// What the stream does.
    pub access: WordAccess,
}

impl WordOperation {
    /// Describes a write to a word of 64 bits.
    pub const fn write(address: u64, value: u64) -> Self {
        WordOperation { address, value, wide: true, access: WordAccess::Write }
    }

    /// Describes a wait for a word of 64 bits.
    pub const fn wait(address: u64, value: u64, condition: WaitCondition) -> Self {
        WordOperation { address, value, wide: true, access: WordAccess::Wait(condition) }
    }
}
