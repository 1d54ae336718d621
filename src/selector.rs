//! Selection of messages by source and tag, and the status of a received message.

use cableway_base::Rank;
use cableway_pml::ANY;

/// Selects any sender, or any tag of 0 and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Any;

/// Selects the sender of a message: a rank of the communicator, or [`Any`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender(Option<Rank>);

/// Selects the tag of a message: a number of 0 and above, or [`Any`].
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

    /// Converts the tag to the engine's form. Negative tags are checked before.
    pub(crate) fn raw(self) -> i32 {
        self.0.unwrap_or(ANY)
    }
}

/// Converts a rank to the engine's form. A rank too large for any communicator stays too large.
pub(crate) fn raw_rank(rank: Rank) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

/// The source, tag and length of a message that was received or probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The sender's rank in the communicator.
    pub source: Rank,
    /// The tag.
    pub tag: i32,
    /// The length in bytes of the message as it was sent.
    pub bytes: u64,
}

impl Status {
    pub(crate) fn new(status: cableway_pml::Status) -> Self {
        Status { source: status.source.cast_unsigned(), tag: status.tag, bytes: status.len }
    }

    /// Returns the number of values of type `T` in the message (`MPI_Get_count`), or `None` if its length is not a multiple
    /// of their size.
    pub fn count<T>(&self) -> Option<u64> {
        match size_of::<T>() as u64 {
            0 => Some(0),
            size => self.bytes.is_multiple_of(size).then_some(self.bytes / size),
        }
    }
}
