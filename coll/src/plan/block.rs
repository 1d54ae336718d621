//! Places and blocks of memory.

/// An address: in the program's memory, or an offset in the plan's scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Place {
    User(usize),
    Scratch(u64),
}

impl Place {
    /// Returns the place this many bytes further on.
    pub(crate) fn plus(self, bytes: u64) -> Place {
        match self {
            Place::User(address) => Place::User(address.wrapping_add(bytes as usize)),
            Place::Scratch(offset) => Place::Scratch(offset + bytes),
        }
    }

    /// Returns the place this many bytes further on or back. It may lie outside the memory, if what is accessed there does
    /// not.
    pub(crate) fn offset(self, bytes: i64) -> Place {
        match self {
            Place::User(address) => Place::User(address.wrapping_add_signed(bytes as isize)),
            Place::Scratch(offset) => Place::Scratch(offset.wrapping_add_signed(bytes)),
        }
    }
}

/// Memory of a message: `count` elements of one of the plan's types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) place: Place,
    pub(crate) count: u64,
    pub(crate) kind: Kind,
}

/// The type of a block's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bytes,
    /// An index of the types of a plan.
    Typed(usize),
}

impl Block {
    /// Describes contiguous bytes.
    pub(crate) fn bytes(place: Place, count: u64) -> Block {
        Block { place, count, kind: Kind::Bytes }
    }
}
