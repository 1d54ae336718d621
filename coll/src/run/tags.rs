//! The tags of collective operations' messages.
//!
//! They share the communicator's context with the program's messages, whose tags are 0 and above, and with messages of
//! Open MPI's own collectives, whose tags are above -2^30. A tag holds the number of the operation, so that messages of
//! operations under way at the same time are told apart, and the number of the message.

/// The bits of a message's number. Messages of one operation between the same two ranks with equal bits keep their
/// order, because so many messages are never under way.
const MESSAGE_BITS: u32 = 16;
/// The numbers of operations. The tags of one more would contain that of notices.
const OPERATIONS: u32 = (1 << 14) - 1;

/// Returns the tag of message 0 of an operation.
pub(super) fn of_operation(number: u32) -> i32 {
    i32::MIN + ((number % OPERATIONS) << MESSAGE_BITS) as i32
}

/// Returns the tag of a message.
pub(super) fn of_message(first: i32, message: u32) -> i32 {
    first + (message % (1 << MESSAGE_BITS)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_lie_below_those_of_open_mpi() {
        let highest = of_message(of_operation(OPERATIONS - 1), u32::MAX);
        assert_eq!(highest, cableway_pml::NOTICE - (1 << 16));
        assert_eq!(of_operation(0), i32::MIN);
        assert_ne!(of_message(of_operation(1), 0), of_message(of_operation(0), (1 << 16) - 1));
    }
}
