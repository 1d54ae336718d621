use cableway_common_cuda::DeviceError;

/// Why a datatype could not be built, or its data not be packed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A count or a block length is negative.
    #[error("{constructor}: {argument} is {value}, which is negative")]
    Negative {
        /// The constructor.
        constructor: &'static str,
        /// Its argument.
        argument: &'static str,
        /// The value given.
        value: i64,
    },
    /// Arguments that describe the same blocks or dimensions differ in length.
    #[error("{constructor}: {argument} has {found} entries where {expected} are expected")]
    Length {
        /// The constructor.
        constructor: &'static str,
        /// Its argument.
        argument: &'static str,
        /// Entries there should be.
        expected: usize,
        /// Entries there are.
        found: usize,
    },
    /// A size, a bound or a displacement of the type does not fit in 64 bits.
    #[error("{constructor}: the type's {quantity} does not fit in 64 bits")]
    Overflow {
        /// The constructor.
        constructor: &'static str,
        /// The quantity that grew too large.
        quantity: &'static str,
    },
    /// One dimension of an array is impossible.
    #[error("{constructor}: dimension {dimension}: {reason}")]
    Dimension {
        /// The constructor.
        constructor: &'static str,
        /// The dimension, counted from 0 in the order of the arguments.
        dimension: usize,
        /// The fault of the dimension.
        reason: String,
    },
    /// The process grid of a distributed array does not fit the group.
    #[error("darray: {0}")]
    Grid(String),
    /// The packed bytes of so many elements do not fit in 64 bits.
    #[error("{count} elements of {size} bytes do not fit in 64 bits")]
    MessageTooLarge {
        /// Elements.
        count: u64,
        /// Bytes of each.
        size: u64,
    },
    /// A convertor made for sending was asked to unpack.
    #[error("a convertor of a send buffer cannot unpack")]
    ReadOnly,
    /// More bytes arrived than the buffer has room for.
    #[error("{given} bytes to unpack where {remaining} remain")]
    Overrun {
        /// Bytes given.
        given: usize,
        /// Bytes that the buffer still takes.
        remaining: u64,
    },
    /// A host copy of a device buffer did not fit.
    #[error("no {len} bytes of host memory for a copy of a device buffer; staging_limit allows {limit} in all")]
    NoMemory {
        /// Bytes of the copy.
        len: u64,
        /// Bytes that all copies may have together.
        limit: u64,
    },
    /// The device's driver refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
