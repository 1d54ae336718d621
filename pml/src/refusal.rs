//! Why a process refuses an access to its registered memory or its window.

/// The reason that the owner of registered memory gives when it refuses an access. The owner has written nothing then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The memory was registered, and is not any more.
    Deregistered,
    /// The owner never made such a key: it was changed, or it belongs to another process.
    UnknownKey,
    /// The bytes are not within the registered memory.
    OutOfRange,
    /// The address of a word is not a multiple of its size.
    Misaligned,
    /// The owner's device driver refused to access the memory. Part of the data may have been written.
    Device,
    /// The data did not arrive whole. Part of it may have been written.
    Incomplete,
    /// The owner of a window knows no such reduction, or the data is not whole elements.
    Reduction,
    /// The memory for the data of an accumulate could not be allocated.
    NoMemory,
    /// A reason unknown to this version.
    Other(u32),
}

impl Refusal {
    pub(crate) fn code(self) -> u32 {
        match self {
            Refusal::Deregistered => 1,
            Refusal::UnknownKey => 2,
            Refusal::OutOfRange => 3,
            Refusal::Misaligned => 4,
            Refusal::Device => 5,
            Refusal::Incomplete => 6,
            Refusal::Reduction => 7,
            Refusal::NoMemory => 8,
            Refusal::Other(code) => code,
        }
    }

    /// Decodes a result: 0 is success.
    pub(crate) fn result(code: u32) -> Result<(), Self> {
        Err(match code {
            0 => return Ok(()),
            1 => Refusal::Deregistered,
            2 => Refusal::UnknownKey,
            3 => Refusal::OutOfRange,
            4 => Refusal::Misaligned,
            5 => Refusal::Device,
            6 => Refusal::Incomplete,
            7 => Refusal::Reduction,
            8 => Refusal::NoMemory,
            other => Refusal::Other(other),
        })
    }

    /// Encodes a result.
    pub(crate) fn code_of(result: Result<(), Self>) -> u32 {
        result.map_or_else(Self::code, |()| 0)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Deregistered => f.write_str("the memory was deregistered; ask its owner for a new key"),
            Refusal::UnknownKey => {
                f.write_str("it made no such key; pass the key on unchanged, as its owner returned it")
            }
            Refusal::OutOfRange => f.write_str("the bytes are outside the registered memory"),
            Refusal::Misaligned => f.write_str("the word's address is not a multiple of its size"),
            Refusal::Device => f.write_str("its device driver cannot access the memory"),
            Refusal::Incomplete => f.write_str("the data did not arrive whole"),
            Refusal::Reduction => {
                f.write_str("it cannot combine such elements; use an operation and type that MPI allows")
            }
            Refusal::NoMemory => f.write_str("no memory is left for the data; use smaller operations"),
            Refusal::Other(code) => write!(f, "unknown reason {code}"),
        }
    }
}
