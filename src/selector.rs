//! Which messages a receive takes, and what is told about them.

use cableway_base::Rank;
use cableway_pml::ANY;

/// Any sender, or any tag of 0 and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Any;

/// A rank of the communicator, or [`Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender(Option<Rank>);

/// A tag of 0 and above, or [`Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(Option<i32>);

impl From<Rank> for Sender {
    fn from(rank: Rank) -> Self {
        Sender(Some(rank))
    }
}

impl From<Any> for Sender {
    fn from(_: Any) -> Self {
        Sender(None)
    }
}

impl From<i32> for Tag {
    fn from(tag: i32) -> Self {
        Tag(Some(tag))
    }
}

impl From<Any> for Tag {
    fn from(_: Any) -> Self {
        Tag(None)
    }
}

impl Sender {
    pub(crate) fn rank(self) -> Option<Rank> {
        self.0
    }

    pub(crate) fn raw(self) -> i32 {
        self.0.map_or(ANY, raw_rank)
    }
}

impl Tag {
    pub(crate) fn tag(self) -> Option<i32> {
        self.0
    }

    /// As the engine takes it; a negative tag is passed on as one that the engine refuses by name.
    pub(crate) fn raw(self) -> i32 {
        self.0.unwrap_or(ANY)
    }
}

/// A rank as the engine takes it. One that no communicator has stays one that no communicator has.
pub(crate) fn raw_rank(rank: Rank) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

/// What is known about a message that was received or probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The sender, in the communicator's count.
    pub source: Rank,
    /// The tag.
    pub tag: i32,
    /// Length in bytes of the message as it was sent.
    pub bytes: u64,
}

impl Status {
    pub(crate) fn new(status: cableway_pml::Status) -> Self {
        Status { source: status.source.cast_unsigned(), tag: status.tag, bytes: status.len }
    }

    /// How many values of `T` came; none if it is no whole number of them.
    pub fn count<T>(&self) -> Option<u64> {
        match size_of::<T>() as u64 {
            0 => Some(0),
            size => self.bytes.is_multiple_of(size).then_some(self.bytes / size),
        }
    }
}
