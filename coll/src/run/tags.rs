//! The tags of collective operations' messages.
//!
//! They share the communicator's context with the program's messages, whose tags are 0 and above, and with messages of
//! Open MPI's own collectives. Those have tags down to -2^30, and neighbourhood collectives 1,024 more. A tag holds the
//! number of the operation, so that messages of operations under way at the same time are told apart, and the number of
//! the message.

use std::ops::RangeInclusive;

/// The bits of a message's number. Messages of one operation between the same two ranks with equal bits keep their
/// order, because so many messages are never under way.
const MESSAGE_BITS: u32 = 16;
/// The numbers of operations. Below -2^30, the first and the last 2^16 tags stay free, for notices, prepared
/// operations of streams and Open MPI, and those
/// before the last are for neighbours.
const OPERATIONS: u32 = (1 << 14) - 3;

/// Returns the tag of message 0 of an operation.
pub(super) fn of_operation(number: u32) -> i32 {
    i32::MIN + ((1 + number % OPERATIONS) << MESSAGE_BITS) as i32
}

/// Returns the tag of message 0 of every operation among neighbours. Those have no number of their own: members without
/// data for each other need not make the same ones. Messages between the same two neighbours keep their order.
pub(super) fn of_neighbors() -> i32 {
    i32::MIN + ((1 + OPERATIONS) << MESSAGE_BITS) as i32
}

/// Returns the tags of all messages.
pub(super) fn all() -> RangeInclusive<i32> {
    of_operation(0)..=of_message(of_neighbors(), u32::MAX)
}

/// Returns the tag of a message.
pub(super) fn of_message(first: i32, message: u32) -> i32 {
    first + (message % (1 << MESSAGE_BITS)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_lie_between_those_of_notices_and_of_open_mpi() {
        let highest = of_message(of_neighbors(), u32::MAX);
        assert!(highest < -(1 << 30) - 2048, "{highest}");
        assert!(of_message(of_operation(OPERATIONS - 1), u32::MAX) < of_neighbors());
        assert!(of_operation(0) > cableway_pml::NOTICE);
        assert_eq!(of_operation(OPERATIONS), of_operation(0));
        assert_eq!(all(), of_operation(0)..=highest);
        assert_ne!(of_message(of_operation(1), 0), of_message(of_operation(0), (1 << 16) - 1));
    }
}
