use cableway_common_cuda::DeviceError;

/// The reason why a datatype cannot be built, or its data cannot be packed.
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
        /// Its value.
        value: i64,
    },
    /// Arguments that describe the same blocks or dimensions differ in length.
    #[error("{constructor}: {argument} has {found} entries instead of {expected}")]
    Length {
        /// The constructor.
        constructor: &'static str,
        /// Its argument.
        argument: &'static str,
        /// The required number of entries.
        expected: usize,
        /// The actual number of entries.
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
    /// The packed bytes of this many elements do not fit in 64 bits.
    #[error("{count} elements of {size} bytes do not fit in 64 bits")]
    MessageTooLarge {
        /// The number of elements.
        count: u64,
        /// The bytes of each element.
        size: u64,
    },
    /// A convertor for sending was used for unpacking.
    #[error("a convertor of a send buffer cannot unpack")]
    ReadOnly,
    /// More bytes arrived than fit into the buffer.
    #[error("{given} bytes to unpack, but {remaining} remain")]
    Overrun {
        /// The number of arrived bytes.
        given: usize,
        /// The number of bytes that fit.
        remaining: u64,
    },
    /// The host copy of a device buffer exceeds the limit.
    #[error("no {len} bytes of host memory for a copy of a device buffer; staging_limit allows {limit} in all")]
    NoMemory {
        /// The bytes of the copy.
        len: u64,
        /// The limit for all copies together.
        limit: u64,
    },
    /// The device's driver refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
