//! Random operations over random communicators, from several threads of each rank.
//!
//! All ranks draw from one seed, so they agree on every operation. Each rank draws by itself where its memory is, and in
//! which order it waits for operations.

use cableway::{Communicator, World};

use super::model::{KINDS, Plan, Step};
use super::random::{OPERATIONS, Random, begin, check, now};
use super::rooms::{Room, Rooms};
use super::{Outcome, options};
use crate::support::{Driver, finish, over, role_job, transports};

/// How many operations the test performs; `./check all` sets it.
const COUNT: &str = "CABLEWAY_TEST_COLLECTIVES";
/// The seed of the first job. Without it the time is the seed. The seed determines the whole job.
const SEED: &str = "CABLEWAY_TEST_SEED";

const FEW: u64 = 400;
/// The operations of a job. They take much less time than a hang.
const PER_JOB: u64 = 1000;
/// The number of communicators that a thread has at a time.
const COMMUNICATORS: usize = 6;

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is '{value}': set it to a number")))
}

/// Runs jobs until they have performed all operations.
pub(super) fn jobs() {
    let driver = Driver::find().options();
    let all = variable(COUNT).unwrap_or(FEW);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_micros() as u64);
    let mut seed = variable(SEED).unwrap_or(now);
    let mut performed = 0;
    while performed < all {
        // Few operations are divided among jobs of every kind.
        let here = (all / 4).clamp(1, PER_JOB);
        performed += job(seed, here, &driver);
        seed += 1;
    }
    println!("{performed} operations, the last seed is {}", seed - 1);
}

/// Runs one job, and returns the number of operations that it performed.
fn job(seed: u64, operations: u64, driver: &[String]) -> u64 {
    let transports = transports();
    let btl = &transports[seed as usize % transports.len()];
    let mut all = [&over(btl), driver].concat();
    if seed / 2 % 2 == 1 {
        let limits = ["coll_algorithm=direct", "coll_segment=512", "coll_device_limit=1"];
        all.extend(limits.iter().flat_map(|limit| ["--set", limit]).map(str::to_owned));
    }
    let ranks = [5, 3, 4, 5, 2][seed as usize % 5];
    let mut command = role_job(ranks, &options(&all), "collectives_storm");
    command.env(COUNT, operations.to_string()).env(SEED, seed.to_string());
    // What failed is printed with the output of the ranks, which begins with the seed.
    let finished = finish(&mut command).assert_success();
    let counts = finished.stdout.lines().filter_map(|line| line.strip_prefix("performed "));
    let performed = counts.map(|count| count.parse::<u64>().expect("a count")).sum();
    assert!(performed >= operations, "{performed} of {operations} operations: {finished:#?}");
    performed
}

pub(super) fn storm() -> Outcome {
    let (seed, operations) = (variable(SEED).ok_or("no seed")?, variable(COUNT).ok_or("no count")?);
    let world = World::init()?;
    let me = world.rank();
    if me == 0 {
        println!("to repeat this job, set {SEED}={seed} and {COUNT}={operations}");
    }
    let threads = 2 + seed % 2;
    let copies: Vec<_> = (0..threads).map(|_| world.communicator().dup()).collect::<Result<_, _>>()?;
    let rooms = &Rooms::new(&world)?;
    let work = |number: u64, everyone: Communicator| {
        let own = Random::new(seed ^ number << 40 ^ u64::from(me + 1) << 48);
        let mut thread = Thread { number, me, rooms, own, all: vec![Some(everyone)], begun: 0, performed: 0 };
        match thread.run(seed, operations.div_ceil(threads)) {
            Ok(()) => thread.performed,
            Err(error) => {
                // The other ranks would wait for this one.
                eprintln!("seed {seed}, thread {number}: {error}");
                std::process::exit(1)
            }
        }
    };
    let performed: u64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..).zip(copies).map(|(number, on)| scope.spawn(move || work(number, on))).collect();
        running.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
    });
    println!("performed {performed}");
    Ok(world.communicator().barrier()?)
}

/// A thread of this rank, which performs operations with the same thread of other ranks.
struct Thread<'r, 'w> {
    number: u64,
    me: u32,
    rooms: &'r Rooms<'w>,
    /// What this rank decides alone.
    own: Random,
    /// The communicators of all ranks' threads of this number. Those without this rank are `None`.
    all: Vec<Option<Communicator>>,
    /// The operations that were drawn, equal on all ranks.
    begun: u64,
    /// The operations that this rank performed as rank 0.
    performed: u64,
}

/// An operation of which this rank is a part.
struct Part {
    step: Step,
    plan: Plan,
    send: Room,
    room: Room,
}

impl Thread<'_, '_> {
    fn run(&mut self, seed: u64, operations: u64) -> Outcome {
        let mut shared = Random::new(seed ^ self.number << 32);
        while self.begun < operations {
            match shared.below(10) {
                0 => self.split(&mut shared)?,
                1 => {
                    let parent = shared.below(self.all.len());
                    let child = self.all[parent].as_ref().map(Communicator::dup).transpose()?;
                    self.keep(child, &mut shared);
                }
                _ => self.overlap(&mut shared, 2)?,
            }
        }
        Ok(())
    }

    /// Splits a communicator into up to three, with its ranks in another order. Some ranks get none.
    fn split(&mut self, shared: &mut Random) -> Outcome {
        let parent = shared.below(self.all.len());
        let ranks = self.all[0].as_ref().map_or(0, |everyone| everyone.size());
        let draws: Vec<_> = (0..ranks).map(|_| (shared.below(4) as u32, shared.below(7) as i32 - 3)).collect();
        let (colour, key) = draws[self.me as usize];
        let mut child = None;
        if let Some(parent) = &self.all[parent] {
            // One rank at least gets a communicator, so that each draw is an operation.
            let colour = (colour < 3 || parent.rank() == 0).then_some(colour);
            child = parent.split(colour, key)?;
        }
        self.keep(child, shared);
        Ok(())
    }

    /// Keeps a communicator, in place of another one if there are many.
    fn keep(&mut self, child: Option<Communicator>, shared: &mut Random) {
        if self.all.len() < COMMUNICATORS {
            self.all.push(child);
        } else {
            let place = 1 + shared.below(COMMUNICATORS - 1);
            self.all[place] = child;
        }
    }

    /// Begins some operations on a communicator, and ends them after others, which may be on other communicators.
    fn overlap(&mut self, shared: &mut Random, deeper: u32) -> Outcome {
        let slot = shared.below(self.all.len());
        let steps: Vec<Step> = (0..1 + shared.below(3)).map(|_| self.draw(shared)).collect();
        let deeper = if deeper > 0 && shared.below(3) == 0 { deeper } else { 0 };
        let Some(on) = self.all[slot].clone() else {
            return if deeper > 0 { self.overlap(shared, deeper - 1) } else { Ok(()) };
        };
        let mut parts = steps.into_iter().map(|step| self.part(&on, step)).collect::<Result<Vec<_>, _>>()?;
        self.perform(&on, &mut parts, || (shared, deeper))?;
        for Part { step, plan, send, room } in &parts {
            check(plan, send, room)
                .map_err(|error| format!("rank {} of {}, {step:?}: {error}", on.rank(), on.size()))?;
            self.performed += u64::from(on.rank() == 0);
        }
        Ok(())
    }

    fn perform<'s>(
        &mut self,
        on: &Communicator,
        parts: &mut [Part],
        next: impl FnOnce() -> (&'s mut Random, u32),
    ) -> Outcome {
        let mut views = Vec::new();
        for Part { step, plan, send, room } in parts {
            views.push((&*step, &*plan, send.view()?, room.view_mut()?));
        }
        on.scope(|scope| {
            let mut under_way = Vec::new();
            for (step, plan, send, room) in &mut views {
                let failed = |error| format!("rank {} of {}, {step:?}: {error}", on.rank(), on.size());
                if step.nonblocking {
                    under_way.push((*step, begin(scope, on.rank(), step, (plan, send), room).map_err(failed)?));
                } else {
                    now(on, step, plan, send, room).map_err(failed)?;
                }
            }
            let (shared, deeper) = next();
            if deeper > 0 {
                self.overlap(shared, deeper - 1)?;
            }
            while !under_way.is_empty() {
                let (step, request) = under_way.swap_remove(self.own.below(under_way.len()));
                request.wait().map_err(|error| format!("rank {} of {}, {step:?}: {error}", on.rank(), on.size()))?;
            }
            Ok(())
        })
    }

    /// Draws an operation for communicators of any size: disjoint ones of a split perform it at the same time.
    fn draw(&mut self, shared: &mut Random) -> Step {
        let longest = [4, 40, 3000, 20_000][[0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3][shared.below(12)]];
        let ranks = self.all[0].as_ref().map_or(0, |everyone| everyone.size());
        self.begun += 1;
        Step {
            kind: KINDS[shared.below(KINDS.len())],
            operation: OPERATIONS[shared.below(OPERATIONS.len())],
            root: shared.below(60),
            len: shared.below(longest),
            counts: (0..ranks).map(|_| shared.below(longest)).collect(),
            in_place: shared.below(2) == 0,
            nonblocking: shared.below(3) != 0,
            number: self.begun << 8 | self.number << 4,
        }
    }

    /// Makes the memory of this rank for an operation.
    fn part(&mut self, on: &Communicator, mut step: Step) -> Result<Part, cableway::Error> {
        let size = on.size() as usize;
        step.root %= size;
        step.counts.truncate(size);
        // No other communicator that performs the same step has this member, so its data differs.
        step.number |= u64::from(on.group()[0]);
        let plan = step.plan(on.rank() as usize);
        let send = self.rooms.room(self.own.below(2) == 0, &plan.send)?;
        let room = self.rooms.room(self.own.below(2) == 0, &plan.before)?;
        Ok(Part { step, plan, send, room })
    }
}
