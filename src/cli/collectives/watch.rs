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
    /// Measures single calls, each of which begins after a barrier.
    pub(super) fn median(&self, mut call: impl FnMut() -> Result<(), Error>) -> Result<Figure, Error> {
        let begun = Instant::now();
        let limit = Duration::from_secs_f64(self.seconds);
        for _ in 0..WARM_UP {
            call()?;
            let mut more = [u8::from(begun.elapsed() < limit)];
            self.on.broadcast(&mut more, 0)?;
            if more == [0] {
                break;
            }
        }
        let (begun, mut times, mut more) = (Instant::now(), Vec::new(), [1_u8]);
        while more != [0] {
            self.on.barrier()?;
            let from = Instant::now();
            call()?;
            let mut took = [from.elapsed().as_secs_f64() * 1e6];
            self.on.allreduce_in_place(&mut took, ReduceOperation::Max)?;
            times.push(took[0]);
            let few = times.len() < LEAST_CALLS;
            more = [u8::from(few || times.len() < MOST_CALLS && begun.elapsed() < limit)];
            self.on.broadcast(&mut more, 0)?;
        }
        times.sort_by(f64::total_cmp);
        Ok(Figure { median: times[times.len() / 2], calls: times.len() })
    }
}
