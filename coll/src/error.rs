//! Errors of collective operations.

use cableway_common_cuda::{DeviceError, Element, ReduceOperation};

/// Why a collective operation failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A message of the operation failed, for example because a process died.
    #[error(transparent)]
    Message(#[from] cableway_pml::Error),
    /// A device refused a reduction or a copy.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// MPI does not define the operation for this type.
    #[error(
        "{operation:?} is not defined for elements of type {element:?}: use an operation of MPI's table for that type"
    )]
    NotDefined {
        /// The operation.
        operation: ReduceOperation,
        /// The type.
        element: Element,
    },
    /// The root does not exist.
    #[error("invalid root {root}: there are {size} ranks")]
    NoSuchRoot {
        /// The root of the call.
        root: u32,
        /// The number of ranks.
        size: u32,
    },
    /// A list has not one entry for each rank.
    #[error("the list of {list} has {len} entries: pass one for each of the {size} ranks")]
    WrongLength {
        /// What the list holds.
        list: &'static str,
        /// Its length.
        len: usize,
        /// The number of ranks.
        size: u32,
    },
    /// The elements exceed the address space.
    #[error("{count} elements of {element:?} are more than memory can hold")]
    TooManyElements {
        /// The number of elements.
        count: u64,
        /// The type.
        element: Element,
    },
    /// The elements of a reduction by a function exceed the address space.
    #[error("{count} elements of {size} bytes are more than memory can hold")]
    TooMuchData {
        /// The number of elements.
        count: u64,
        /// The bytes of one.
        size: u64,
    },
    /// The counts of a reduce-scatter do not add up.
    #[error("the counts of the ranks add up to {sum} elements, not to {count}: pass counts of all elements")]
    WrongSum {
        /// Their sum.
        sum: u64,
        /// The number of elements.
        count: u64,
    },
    /// A message is shorter or longer than expected.
    #[error(
        "rank {rank} sent {sent} bytes where {expected} are expected: the operation failed there, or the ranks' \
         arguments do not fit together"
    )]
    OtherLength {
        /// The sender.
        rank: u32,
        /// The length of its message.
        sent: u64,
        /// The length that this process expects.
        expected: u64,
    },
    /// The operation failed at another rank, before it sent its data.
    #[error("the operation failed at rank {rank}: see the error there")]
    OtherFailed {
        /// The rank.
        rank: u32,
    },
    /// The program gave the operation up.
    #[error("the program gave the operation up")]
    GivenUp,
    /// An earlier exchange with neighbours was given up.
    #[error(
        "an earlier exchange with neighbours was given up, so that its messages may still come: use another communicator"
    )]
    Interrupted,
    /// No memory for data in transit.
    #[error("cannot allocate {bytes} bytes for data in transit")]
    NoMemory {
        /// The number of bytes.
        bytes: u64,
    },
}
