//! A rank dies within each operation of the library.
//!
//! Rank 0 does not begin the operation before all survivors know of the death. All others need its data, or it to take
//! theirs, so nobody can complete the operation before.

use std::time::{Duration, Instant};

use cableway::{Communicator, ReduceOperation, World};

use super::model::{KINDS, Kind, Step};
use super::random::{begin, now};
use super::rooms::Rooms;
use super::{NO_DRIVER, Outcome, options};
use crate::faults::{fails_soon, kill_myself, survived};
use crate::support::{SOON, finish, over, role_job, transports};

/// The place in [`all`] of the operation that a job performs.
const PLACE: &str = "CABLEWAY_TEST_OPERATION";
const RANKS: usize = 4;
/// So many elements do not leave before the receiver takes them.
const LARGE: usize = 1 << 16;
const READY: i32 = 1;
const GO: i32 = 2;
const REPORT: i32 = 3;
const END: i32 = 4;

#[derive(Clone, Copy, Debug)]
enum Tested {
    Data { kind: Kind, in_place: bool, nonblocking: bool },
    Barrier,
    NonblockingBarrier,
    Dup,
    Split,
}

/// Returns every operation in every form.
fn all() -> Vec<Tested> {
    let mut all = vec![Tested::Barrier, Tested::NonblockingBarrier, Tested::Dup, Tested::Split];
    for kind in KINDS {
        for in_place in [false, true] {
            for nonblocking in [false, true] {
                if !(in_place && kind == Kind::Broadcast) {
                    all.push(Tested::Data { kind, in_place, nonblocking });
                }
            }
        }
    }
    all
}

/// Returns an operation whose root, if it has one, is rank 0.
fn step(kind: Kind, in_place: bool, nonblocking: bool) -> Step {
    let (operation, counts) = (ReduceOperation::Max, vec![LARGE; RANKS]);
    Step { kind, operation, root: 0, len: LARGE, counts, in_place, nonblocking, number: 1 }
}

/// Runs a job for each operation, over the transports in turn.
pub(super) fn jobs(sets: &[&str]) {
    let transports = transports();
    let sets: Vec<String> = sets.iter().flat_map(|set| ["--set", set]).map(str::to_owned).collect();
    for (place, tested) in all().into_iter().enumerate() {
        let btl = &transports[place % transports.len()];
        let all = [vec!["--keep-going".to_owned()], over(btl), sets.clone()].concat();
        let mut job = role_job(RANKS as u32, &options(&all), "collectives_dying");
        let finished = finish(job.env(PLACE, place.to_string()).env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER));
        let survivors = finished.stdout.lines().filter(|line| *line == "survived").count();
        assert_eq!(survivors, RANKS - 1, "{btl}, {tested:?}: {finished:#?}");
    }
}

impl Tested {
    /// Returns whether ranks other than the root exchange data with the root only.
    fn needs_root_only(self) -> bool {
        let rooted = [Kind::Gather, Kind::Gatherv, Kind::Scatter, Kind::Scatterv];
        matches!(self, Tested::Data { kind, .. } if rooted.contains(&kind))
    }

    fn perform(self, on: &Communicator, rooms: &Rooms<'_>) -> Result<(), cableway::Error> {
        let Tested::Data { kind, in_place, nonblocking } = self else {
            return match self {
                Tested::Barrier => on.barrier(),
                Tested::NonblockingBarrier => on.scope(|scope| scope.barrier()?.wait()),
                Tested::Dup => on.dup().map(drop),
                _ => on.split(Some(on.rank() % 2), 0).map(drop),
            };
        };
        let step = step(kind, in_place, nonblocking);
        let plan = step.plan(on.rank() as usize);
        let (send, mut room) = (rooms.room(false, &plan.send)?, rooms.room(false, &plan.before)?);
        let (send, mut room) = (send.view()?, room.view_mut()?);
        if nonblocking {
            on.scope(|scope| begin(scope, on.rank(), &step, (&plan, &send), &mut room)?.wait())
        } else {
            now(on, &step, &plan, &send, &mut room)
        }
    }
}

pub(super) fn role() -> Outcome {
    let place: usize = std::env::var(PLACE)?.parse()?;
    let tested = *all().get(place).ok_or("no such operation")?;
    let world = World::init()?;
    let (on, everyone, rooms) = (world.communicator().dup()?, world.communicator(), Rooms::new(&world)?);
    // Connect all ranks.
    everyone.alltoall(&[0_u8; RANKS], &mut [0_u8; RANKS])?;
    match world.rank() {
        0 => {
            for other in 1..RANKS as u32 {
                everyone.recv(&mut [0_u8; 1], other, READY)?;
            }
            everyone.send(&[0_u8; 1], 1, GO)?;
            fails_soon("receive", || everyone.recv(&mut [0_u8; 1], 1, REPORT).map(drop))?;
            // The others are within the operation, and know.
            for other in 2..RANKS as u32 {
                everyone.recv(&mut [0_u8; 1], other, REPORT)?;
            }
            fails_soon("the operation", || tested.perform(&on, &rooms))?;
        }
        1 => std::thread::scope(|threads| {
            threads.spawn(|| {
                let told = everyone.recv(&mut [0_u8; 1], 0, GO);
                // The other thread is within the operation by now. If it is not, the test is weaker but right.
                std::thread::sleep(Duration::from_millis(20));
                told.map_err(|error| error.to_string()).and_then(|_| kill_myself().map_err(|error| error.to_string()))
            });
            everyone.send(&[0_u8; 1], 0, READY)?;
            tested.perform(&on, &rooms)?;
            Err::<(), Box<dyn std::error::Error>>("the operation ended without rank 0".into())
        })?,
        _ => std::thread::scope(|threads| {
            let knows = threads.spawn(|| {
                fails_soon("receive", || everyone.recv(&mut [0_u8; 1], 1, REPORT).map(drop))
                    .and_then(|()| Ok(everyone.send(&[0_u8; 1], 0, REPORT)?))
                    .map_err(|error| error.to_string())
            });
            everyone.send(&[0_u8; 1], 0, READY)?;
            let start = Instant::now();
            let result = tested.perform(&on, &rooms);
            knows.join().map_err(|_| "panicked")??;
            if start.elapsed() > SOON {
                return Err(format!("it took {:?}", start.elapsed()).into());
            }
            // If the data of rank 0 comes before this thread looks, an operation without rank 1's data succeeds.
            if result.is_ok() && tested.needs_root_only() { Ok(()) } else { fails_soon("the operation", || result) }
        })?,
    }
    // A survivor that left earlier would be another reason for an error.
    let survivors = || [0, 2, 3].into_iter().filter(|&other| other != world.rank());
    survivors().try_for_each(|other| everyone.send(&[0_u8; 1], other, END))?;
    survivors().try_for_each(|other| everyone.recv(&mut [0_u8; 1], other, END).map(drop))?;
    survived()
}
