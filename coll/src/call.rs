//! Collective calls: what a rank passes.

use cableway_common_cuda::{Element, ReduceOperation};
use cableway_datatype::Layout;

use crate::function::{FunctionOperands, Reduced};

/// Memory of a call, on the host or on a device: `count` elements of `layout`, or bytes without one.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// The address from which the layout's offsets count. It is ignored if there are no bytes.
    pub address: *mut u8,
    /// The number of elements, or of bytes.
    pub count: u64,
    /// The layout of an element.
    pub layout: Option<&'a Layout>,
}

impl<'a> Memory<'a> {
    /// Describes `len` contiguous bytes.
    pub fn bytes(address: *mut u8, len: u64) -> Memory<'a> {
        Memory { address, count: len, layout: None }
    }

    /// Returns the number of bytes of data, or the maximum if they are too many for a message.
    pub fn packed_len(&self) -> u64 {
        self.layout.map_or(self.count, |layout| layout.packed_size(self.count).unwrap_or(u64::MAX))
    }

    /// Returns the address and length if the data is one run of bytes.
    pub(crate) fn run(&self) -> Option<(usize, u64)> {
        match self.layout {
            None => Some((self.address as usize, self.count)),
            Some(layout) => {
                let (offset, len) = layout.contiguous_span(self.count)?;
                Some(((self.address as usize).wrapping_add_signed(offset as isize), len))
            }
        }
    }

    /// Returns the address and length of the memory from the first byte of data to the last one. Returns `None` if there is
    /// no data, or if that exceeds every buffer.
    pub(crate) fn span(&self) -> Option<(usize, usize)> {
        let (offset, len) = match self.layout {
            None => (0, self.count),
            Some(layout) => layout.span(self.count)?,
        };
        let len = usize::try_from(len).ok().filter(|&len| len != 0)?;
        Some(((self.address as usize).wrapping_add_signed(offset as isize), len))
    }
}

impl std::fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = if self.layout.is_some() { "elements" } else { "bytes" };
        write!(f, "{} {unit} at {:p}", self.count, self.address)
    }
}

/// The operands of a reduction in one process: elements without gaps between them, on the host or on a device.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The operation.
    pub operation: ReduceOperation,
    /// The type of the elements. The operation must [apply](ReduceOperation::applies_to) to it.
    pub element: Element,
    /// The number of elements. Of a reduce-scatter, that of the input.
    pub count: u64,
    /// The input, or `None` for `MPI_IN_PLACE`: it is at `output`.
    pub input: Option<*const u8>,
    /// The output. It is ignored where the operation gives this process none.
    pub output: *mut u8,
}

/// A message to or from a neighbour of a topology.
#[derive(Clone, Copy, Debug)]
pub struct Edge<'a> {
    /// The neighbour's rank.
    pub rank: u32,
    /// Tells several messages between the same two ranks apart, and is the same on both sides.
    pub message: u32,
    /// The memory.
    pub memory: Memory<'a>,
}

/// A collective operation, as one process calls it. All processes of the communicator make the same calls in the same
/// order.
///
/// Memory may be on the host in some processes and on devices in others. Lists of memory have one entry for each rank.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Call<'a> {
    /// `MPI_Bcast`.
    Broadcast {
        /// The data: read at the root, written elsewhere.
        memory: Memory<'a>,
        /// The root's rank.
        root: u32,
    },
    /// `MPI_Gather` and `MPI_Gatherv`.
    Gather {
        /// This process's contribution, or `None` at the root for `MPI_IN_PLACE`.
        send: Option<Memory<'a>>,
        /// Where each rank's contribution goes; empty except at the root.
        receive: Vec<Memory<'a>>,
        /// The root's rank.
        root: u32,
    },
    /// `MPI_Scatter` and `MPI_Scatterv`.
    Scatter {
        /// Each rank's share; empty except at the root.
        send: Vec<Memory<'a>>,
        /// Where this process's share goes, or `None` at the root for `MPI_IN_PLACE`.
        receive: Option<Memory<'a>>,
        /// The root's rank.
        root: u32,
    },
    /// `MPI_Allgather` and `MPI_Allgatherv`.
    Allgather {
        /// This process's contribution, or `None` for `MPI_IN_PLACE`.
        send: Option<Memory<'a>>,
        /// Where each rank's contribution goes.
        receive: Vec<Memory<'a>>,
    },
    /// `MPI_Alltoall`, `MPI_Alltoallv` and `MPI_Alltoallw`.
    Alltoall {
        /// The data for each rank, or `None` for `MPI_IN_PLACE`.
        send: Option<Vec<Memory<'a>>>,
        /// Where each rank's data goes.
        receive: Vec<Memory<'a>>,
        /// All blocks of all ranks have one length, as `MPI_Alltoall` demands.
        even: bool,
    },
    /// The neighbourhood collectives.
    Neighbors {
        /// The data for the neighbours.
        send: Vec<Edge<'a>>,
        /// Where the neighbours' data goes.
        receive: Vec<Edge<'a>>,
        /// Messages without data are sent, too, so that a rank learns that it expected some. Both sides pass the same.
        with_empty: bool,
    },
    /// `MPI_Allreduce`.
    Allreduce(Operands),
    /// `MPI_Reduce`.
    Reduce {
        /// The operands. Only the root has an output, and only the root may be in place.
        operands: Operands,
        /// The root's rank.
        root: u32,
    },
    /// `MPI_Reduce_scatter` and `MPI_Reduce_scatter_block`.
    ReduceScatter {
        /// The operands. In place, the output is written at the beginning of the input.
        operands: Operands,
        /// The number of elements that each rank gets.
        counts: Vec<u64>,
    },
    /// `MPI_Scan`.
    Scan(Operands),
    /// `MPI_Exscan`. Rank 0 has no output.
    ExclusiveScan(Operands),
    /// `MPI_Reduce_local`, which is no collective operation: the input is reduced with the output, to the output. Any
    /// process may call it at any time, on a communicator of its own.
    ReduceLocal(Operands),
    /// A reduction by a function of the program. The host calls the function, so operands on devices are copied there and
    /// back, in pieces.
    ByFunction(FunctionOperands<'a>, Reduced),
}

/// Where a call has its memory in this process. An address is null if there is none.
#[derive(Clone, Copy, Debug)]
pub struct Passed {
    /// An address of what is sent.
    pub send: *const u8,
    /// An address of what is received.
    pub receive: *const u8,
}

impl Call<'_> {
    /// Returns a number of bytes that is equal at all ranks, or the maximum if there is none.
    pub(crate) fn equal_bytes(&self) -> u64 {
        match self {
            Call::Broadcast { memory, .. } => memory.packed_len(),
            Call::Allgather { receive, .. } => packed_len_of(receive),
            Call::Allreduce(operands)
            | Call::Reduce { operands, .. }
            | Call::ReduceScatter { operands, .. }
            | Call::Scan(operands)
            | Call::ExclusiveScan(operands) => operands.count.saturating_mul(operands.element.size() as u64),
            // A rank knows its own part only.
            Call::Gather { .. }
            | Call::Scatter { .. }
            | Call::Alltoall { .. }
            | Call::Neighbors { .. }
            | Call::ReduceLocal(_)
            | Call::ByFunction(..) => u64::MAX,
        }
    }

    /// Returns addresses of memory of the call.
    pub(crate) fn passed(&self) -> Passed {
        let one = |memory: &Memory<'_>| memory.address.cast_const();
        let first = |all: &[Memory<'_>]| all.iter().find(|memory| memory.count != 0).map_or(std::ptr::null(), one);
        let (send, receive) = match self {
            Call::Broadcast { memory, .. } => (one(memory), one(memory)),
            Call::Gather { send, receive, .. } | Call::Allgather { send, receive } => {
                (send.as_ref().map_or(std::ptr::null(), one), first(receive))
            }
            Call::Scatter { send, receive, .. } => (first(send), receive.as_ref().map_or(std::ptr::null(), one)),
            Call::Alltoall { send, receive, .. } => (send.as_deref().map_or(std::ptr::null(), first), first(receive)),
            Call::Neighbors { send, receive, .. } => {
                let edge = |all: &[Edge<'_>]| all.first().map_or(std::ptr::null(), |edge| one(&edge.memory));
                (edge(send), edge(receive))
            }
            Call::Allreduce(operands)
            | Call::Reduce { operands, .. }
            | Call::ReduceScatter { operands, .. }
            | Call::Scan(operands)
            | Call::ExclusiveScan(operands)
            | Call::ReduceLocal(operands) => (operands.input.unwrap_or(std::ptr::null()), operands.output.cast_const()),
            // The host reduces, wherever the operands are.
            Call::ByFunction(..) => (std::ptr::null(), std::ptr::null()),
        };
        Passed { send, receive }
    }
}

/// Returns the bytes of data of a list of memory.
pub(crate) fn packed_len_of(all: &[Memory<'_>]) -> u64 {
    all.iter().fold(0, |sum, memory| sum.saturating_add(memory.packed_len()))
}
