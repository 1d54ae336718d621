//! Calls of collective operations: which memory they name, and those that are under way.

mod moving;
mod neighbors;
mod parts;
mod reducing;
mod running;

pub use neighbors::Neighbors;
pub use parts::Parts;

pub(crate) use moving::{Exchange, allgather, alltoall, broadcast, gather, gather_in_place, scatter, scatter_in_place};
pub(crate) use neighbors::neighbors;
pub(crate) use parts::{divided, divided_mut, region, region_mut};
pub(crate) use reducing::{Operands, allreduce, barrier, reduce, reduce_scatter, scan};
pub(crate) use running::{Running, RunningList, Token};

use cableway_base::Rank;
use cableway_coll::Call;

use crate::Error;
use crate::error::Collective;

/// This process as a member of a communicator.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
}

/// A call whose arguments are right, as far as one process can see.
pub(crate) struct Prepared<'a> {
    pub(crate) operation: Collective,
    pub(crate) call: Call<'a>,
}

impl Member {
    /// Checks a root.
    fn check(self, operation: Collective) -> Result<(), Error> {
        let size = self.size;
        match operation.root {
            Some(root) if root >= size => Err(operation.failed(cableway_coll::Error::NoSuchRoot { root, size })),
            _ => Ok(()),
        }
    }
}
