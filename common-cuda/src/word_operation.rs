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

    /// Describes writes of bytes as words that are as wide as their addresses permit. Both the address and the length are
    /// multiples of 4.
    pub fn writes(mut address: u64, mut bytes: &[u8]) -> Vec<Self> {
        debug_assert!(
            address.is_multiple_of(4) && bytes.len().is_multiple_of(4),
            "{address:#x}, {} bytes",
            bytes.len()
        );
        let mut writes = Vec::with_capacity(bytes.len() / 8 + 2);
        while let Some((low, behind)) = bytes.split_first_chunk::<4>() {
            let (wide, value, rest) = match (address.is_multiple_of(8), bytes.split_first_chunk::<8>()) {
                (true, Some((both, rest))) => (true, u64::from_le_bytes(*both), rest),
                _ => (false, u64::from(u32::from_le_bytes(*low)), behind),
            };
            writes.push(WordOperation { address, value, wide, access: WordAccess::Write });
            address += (bytes.len() - rest.len()) as u64;
            bytes = rest;
        }
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_wide_as_their_addresses_permit() {
        let bytes: Vec<u8> = (0..20).collect();
        let described = |address| {
            let writes = WordOperation::writes(address, &bytes);
            assert!(writes.iter().all(|write| write.access == WordAccess::Write));
            writes.iter().map(|write| (write.address, write.value, write.wide)).collect::<Vec<_>>()
        };
        let low = 0x0706_0504_0302_0100;
        let next = |word: u64| word + 0x0808_0808_0808_0808;
        assert_eq!(described(8), [(8, low, true), (16, next(low), true), (24, 0x1312_1110, false)]);
        let shifted = low + 0x0404_0404_0404_0404;
        assert_eq!(described(4), [(4, 0x0302_0100, false), (8, shifted, true), (16, next(shifted), true)]);
        assert!(WordOperation::writes(8, &[]).is_empty());
    }
}
