//! The operations, and the results that they must have.

use cableway::{Communicator, Rank, ReduceOperation};
use clap::ValueEnum;

use super::place::Floats;
use crate::cli::Failure;
use crate::cli::rows::name;

const ROOT: Rank = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Operation {
    Allreduce,
    Reduce,
    Bcast,
    Scan,
    Allgather,
    Gather,
    Scatter,
    Alltoall,
    ReduceScatter,
}

/// The elements of what this rank sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lens {
    send: usize,
    receive: usize,
}

impl Operation {
    /// Returns the lengths of the buffers, with shares of one length where ranks have some. Returns `None` if a share would
    /// have no element.
    pub(super) fn lens(self, bytes: u64, ranks: u32) -> Option<Lens> {
        let floats = usize::try_from(bytes).ok()? / size_of::<f32>();
        let share = floats / ranks as usize;
        let all = share * ranks as usize;
        let (send, receive) = match self {
            Operation::Allreduce | Operation::Reduce | Operation::Scan => (floats, floats),
            Operation::Bcast => (0, floats),
            Operation::Allgather | Operation::Gather => (share, all),
            Operation::Scatter | Operation::ReduceScatter => (all, share),
            Operation::Alltoall => (all, all),
        };
        (receive > 0).then_some(Lens { send, receive })
    }
}

impl Lens {
    /// Returns the bytes of the larger buffer.
    pub(super) fn bytes(self) -> usize {
        self.send.max(self.receive) * size_of::<f32>()
    }
}

/// The memory of an operation.
pub(super) struct Buffers<B> {
    operation: Operation,
    lens: Lens,
    send: B,
    receive: B,
}

impl<B: Floats> Buffers<B> {
    pub(super) fn new(
        operation: Operation,
        lens: Lens,
        zeroed: impl Fn(usize) -> Result<B, Failure>,
    ) -> Result<Self, Failure> {
        Ok(Buffers { operation, lens, send: zeroed(lens.send)?, receive: zeroed(lens.receive)? })
    }

    pub(super) fn call(&mut self, on: &Communicator) -> Result<(), cableway::Error> {
        let Buffers { send, receive, .. } = self;
        let (at_root, sum) = (on.rank() == ROOT, ReduceOperation::Sum);
        match self.operation {
            Operation::Allreduce => on.allreduce(send, receive, sum),
            Operation::Reduce => on.reduce(send, sum, ROOT, at_root.then_some(receive)),
            Operation::Bcast => on.broadcast(receive, ROOT),
            Operation::Scan => on.scan(send, receive, sum),
            Operation::Allgather => on.allgather(send, receive),
            Operation::Gather => on.gather(send, ROOT, at_root.then_some(receive)),
            Operation::Scatter => on.scatter(at_root.then_some(send), ROOT, receive),
            Operation::Alltoall => on.alltoall(send, receive),
            Operation::ReduceScatter => on.reduce_scatter_block(send, receive, sum),
        }
    }

    /// Performs the operation with values that differ by rank and place, and compares the results.
    pub(super) fn check(&mut self, on: &Communicator) -> Result<(), Failure> {
        let (rank, ranks) = (on.rank() as usize, on.size() as usize);
        let at_root = on.rank() == ROOT;
        let sent: Vec<f32> = (0..self.lens.send).map(|at| value(rank, at)).collect();
        self.send.write(&sent)?;
        // Nothing that a rank sends is negative.
        let mut before = vec![-1.0; self.lens.receive];
        if self.operation == Operation::Bcast && at_root {
            before = (0..self.lens.receive).map(|at| value(rank, at)).collect();
        }
        self.receive.write(&before)?;
        self.call(on)?;
        if !at_root && matches!(self.operation, Operation::Reduce | Operation::Gather) {
            return Ok(());
        }
        for (at, found) in self.receive.read()?.into_iter().enumerate() {
            let right = self.right(rank, ranks, at);
            if found.to_bits() != right.to_bits() {
                let name = name(self.operation);
                let text = format!("{name}: element {at} of rank {rank} is {found} and must be {right}");
                return Err(Failure::failed(1, text));
            }
        }
        Ok(())
    }

    /// Returns what element `at` of a rank's result must be. Sums of these values are exact.
    fn right(&self, rank: usize, ranks: usize, at: usize) -> f32 {
        let sum_of = |ranks: usize, at: usize| (0..ranks).map(|from| value(from, at)).sum();
        let share = self.lens.receive / ranks;
        match self.operation {
            Operation::Allreduce | Operation::Reduce => sum_of(ranks, at),
            Operation::Scan => sum_of(rank + 1, at),
            Operation::ReduceScatter => sum_of(ranks, rank * self.lens.receive + at),
            Operation::Bcast => value(ROOT as usize, at),
            Operation::Scatter => value(ROOT as usize, rank * self.lens.receive + at),
            Operation::Allgather | Operation::Gather => value(at / share, at % share),
            Operation::Alltoall => value(at / share, rank * share + at % share),
        }
    }
}

/// Returns element `at` of what a rank sends: small whole numbers.
fn value(rank: usize, at: usize) -> f32 {
    (rank % 64 * 17 + at % 251) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_one_length_and_some_element() {
        assert_eq!(Operation::Allreduce.lens(8, 3), Some(Lens { send: 2, receive: 2 }));
        assert_eq!(Operation::Allgather.lens(24, 3), Some(Lens { send: 2, receive: 6 }));
        assert_eq!(Operation::Scatter.lens(24, 3), Some(Lens { send: 6, receive: 2 }));
        assert_eq!(Operation::Alltoall.lens(28, 3), Some(Lens { send: 6, receive: 6 }));
        assert_eq!(Operation::Alltoall.lens(28, 3).unwrap().bytes(), 24);
        assert_eq!(Operation::Gather.lens(4, 2), None);
    }
}
