//! Measures calls that all ranks make together.

use std::time::{Duration, Instant};

use cableway::{Communicator, Error, ReduceOperation};

const WARM_UP: u32 = 16;
const MOST_CALLS: usize = 10_000;
const LEAST_CALLS: usize = 5;

pub(super) struct Watch {
    pub(super) on: Communicator,
    /// The time of a figure.
    pub(super) seconds: f64,
}

/// What calls took.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    /// Of the rank that took longest, in microseconds.
    pub(super) median: f64,
    pub(super) calls: usize,
}

impl Watch {
    /// Returns what rank 0 says, so that all ranks go on or end together.
    fn first_says(&self, mine: bool) -> Result<bool, Error> {
        let mut said = [u8::from(mine)];
        self.on.broadcast(&mut said, 0)?;
        Ok(said != [0])
    }

    /// Measures single calls, each of which begins after a barrier.
    pub(super) fn median(&self, mut call: impl FnMut() -> Result<(), Error>) -> Result<Figure, Error> {
        let begun = Instant::now();
        let limit = Duration::from_secs_f64(self.seconds);
        for _ in 0..WARM_UP {
            call()?;
            if !self.first_says(begun.elapsed() < limit)? {
                break;
            }
        }
        let (begun, mut times) = (Instant::now(), Vec::new());
        loop {
            self.on.barrier()?;
            let from = Instant::now();
            call()?;
            let mut took = [from.elapsed().as_secs_f64() * 1e6];
            self.on.allreduce_in_place(&mut took, ReduceOperation::Max)?;
            times.push(took[0]);
            let few = times.len() < LEAST_CALLS;
            if !self.first_says(few || times.len() < MOST_CALLS && begun.elapsed() < limit)? {
                break;
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(Figure { median: times[times.len() / 2], calls: times.len() })
    }
}
