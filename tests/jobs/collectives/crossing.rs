//! Random operations from several threads, over communicators that cross each other and come and go.
//!
//! All ranks draw from one seed. Each thread has communicators of its own, whose groups are drawn at random. So two
//! threads of a rank are in operations with different ranks at the same time, in an order that no rank controls. Where
//! memory is, each rank draws alone.

use std::error::Error;

use cableway::{Communicator, ReduceOperation, World};

use super::Outcome;
use super::model::{KINDS, Step};
use super::random::{Random, perform};
use super::rooms::Rooms;
use crate::support::{Driver, finish, over, role_job, transports};

/// Names the seed and the number of operations of a job.
const SEED: &str = "CABLEWAY_TEST_SEED";
const OPERATIONS: &str = "CABLEWAY_TEST_OPERATIONS";

const THREADS: u64 = 3;
/// The communicators of each thread beside the one that has all ranks.
const GROUPS: usize = 3;
/// A thread replaces one of them after about so many operations.
const LIFE: usize = 40;

/// The operations of a job, and the jobs of each transport. Under `CABLEWAY_TEST_WHOLE=1` all tests together perform
/// 10^5 operations.
const SAMPLE: (u64, u64) = (600, 1);
const WHOLE: (u64, u64) = (2500, 10);

/// Runs jobs over each transport, in host memory only or in device memory, too.
pub(super) fn jobs(devices: bool) {
    let whole = std::env::var_os("CABLEWAY_TEST_WHOLE").is_some_and(|value| value == "1");
    let (operations, jobs) = if whole { WHOLE } else { SAMPLE };
    let driver = Driver::find().folder.to_string_lossy().into_owned();
    for (btl, job) in transports().iter().flat_map(|btl| (0..jobs).map(move |job| (btl, job))) {
        let mut options = over(btl);
        if job % 2 == 1 {
            // Algorithms for large data.
            let sets = ["coll_small=64", "coll_segment=512", "coll_device_limit=1"];
            options.extend(sets.iter().flat_map(|set| ["--set", set]).map(str::to_owned));
        }
        if devices {
            options.extend([crate::support::libdir_option().to_owned(), driver.clone()]);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mut command = role_job(3 + (job % 3) as u32, &options, "collectives_crossing");
        if !devices {
            command.env("CABLEWAY_CUDA_LIBDIR", super::NO_DRIVER);
        }
        let seed = 1 + job + 1000 * u64::from(devices);
        command.env(SEED, seed.to_string()).env(OPERATIONS, operations.to_string());
        finish(&mut command).assert_success();
    }
}

/// A rank of the job.
pub(super) fn cross() -> Outcome {
    let number = |name: &str| -> Result<u64, Box<dyn Error>> { Ok(std::env::var(name)?.parse()?) };
    let (seed, operations) = (number(SEED)?, number(OPERATIONS)?);
    let world = World::init()?;
    // For a hang, of which only the output is known.
    println!("rank {}: seed {seed}, {operations} operations", world.rank());
    let everyone: Vec<_> = (0..THREADS).map(|_| world.communicator().dup()).collect::<Result<_, _>>()?;
    let rooms = Rooms::new(&world)?;
    let failed = std::thread::scope(|threads| {
        let (rooms, each) = (&rooms, operations.div_ceil(THREADS));
        let start =
            |(thread, everyone)| threads.spawn(move || Crossing::new(everyone, (seed, thread)).run(rooms, each));
        let running: Vec<_> = (0..).zip(&everyone).map(start).collect();
        running.into_iter().filter_map(|thread| thread.join().unwrap_or_else(|_| Err("panicked".into())).err()).last()
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(world.communicator().barrier()?),
    }
}

/// One thread of a rank.
struct Crossing<'c> {
    everyone: &'c Communicator,
    /// Of each group, the communicator in which this rank is.
    groups: [Option<Communicator>; GROUPS],
    /// Draws what is equal on all ranks.
    common: Random,
    /// Draws what this rank alone decides.
    own: Random,
    name: (u64, u64),
}

impl<'c> Crossing<'c> {
    fn new(everyone: &'c Communicator, (seed, thread): (u64, u64)) -> Self {
        let common = (seed << 8 | (thread + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let own = Random(common ^ u64::from(everyone.rank() + 1) << 40);
        Crossing { everyone, groups: Default::default(), common: Random(common), own, name: (seed, thread) }
    }

    fn run(mut self, rooms: &Rooms<'_>, operations: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        for group in 0..GROUPS {
            self.replace(group)?;
        }
        for number in 0..operations {
            if self.common.below(LIFE) == 0 {
                let group = self.common.below(GROUPS);
                self.replace(group)?;
            }
            self.operate(rooms, number)?;
        }
        Ok(())
    }

    /// Replaces the communicators of one group by others, of ranks drawn at random and in a random order.
    fn replace(&mut self, group: usize) -> Result<(), cableway::Error> {
        let mut draw = || ([None, Some(0), Some(1), Some(1)][self.common.below(4)], self.common.below(5) as i32);
        let all: Vec<_> = (0..self.everyone.size()).map(|_| draw()).collect();
        let (colour, key) = all[self.everyone.rank() as usize];
        self.groups[group] = self.everyone.split(colour, key)?;
        Ok(())
    }

    /// Performs an operation on all ranks, or on the communicators of one group, whose members differ.
    fn operate(&mut self, rooms: &Rooms<'_>, number: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        let chosen = self.common.below(GROUPS + 1);
        // Communicators of one group may have different sizes, and draw different numbers from here on.
        let mut random = Random(self.common.below(1 << 40) as u64 | 1 << 41);
        let on_device = [self.own.below(2) == 0, self.own.below(2) == 0];
        let Some(on) = self.groups.get(chosen).map_or(Some(self.everyone), Option::as_ref) else { return Ok(()) };
        let size = on.size() as usize;
        let longest = [4, 40, 3000][random.below(3)];
        let step = Step {
            kind: KINDS[random.below(KINDS.len())],
            operation: [ReduceOperation::Sum, ReduceOperation::Max, ReduceOperation::BitXor][random.below(3)],
            root: random.below(size),
            len: random.below(longest),
            counts: (0..size).map(|_| random.below(longest)).collect(),
            in_place: random.below(2) == 0,
            nonblocking: random.below(2) == 0,
            number,
        };
        let (seed, thread) = self.name;
        let failed = |error| format!("seed {seed}, thread {thread}, operation {number}: {error}").into();
        perform(on, rooms, &step, on_device).map_err(failed)
    }
}
