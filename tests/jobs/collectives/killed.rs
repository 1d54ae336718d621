//! A rank that is killed inside an operation, for each operation.
//!
//! Rank 2 begins the operation after it has heard that rank 1 is dead. The data is large, so rank 1 cannot leave the
//! operation before, and dies inside it while rank 0 is on its way.

use std::time::Instant;

use cableway::{Communicator, EngineError, ErrorKind, ReduceOperation, World};

use super::Outcome;
use crate::faults::{fails_soon, kill_myself, others_go_on, survived};
use crate::support::{SOON, finish, over, role_job, transports};

/// The number of the operation in [`OPERATIONS`].
const OPERATION: &str = "CABLEWAY_TEST_OPERATION";

const LEN: usize = 1 << 17;
const SUM: ReduceOperation = ReduceOperation::Sum;

/// What rank 1 says if it has left the operation.
const LEFT: &str = "rank 1 left the operation before rank 2 began it";

type Call = fn(&Communicator) -> Result<(), cableway::Error>;

struct Operation {
    name: &'static str,
    call: Call,
    /// The operation at ranks 0 and 2 needs data of rank 1, or of a rank that lacks such data. Otherwise its result at
    /// that rank may be complete.
    needs: [bool; 2],
}

const fn operation(name: &'static str, needs: [bool; 2], call: Call) -> Operation {
    Operation { name, call, needs }
}

/// The root is rank 1.
const OPERATIONS: [Operation; 13] = [
    operation("broadcast", [true, true], |on| on.broadcast(&mut values(1), 1)),
    operation("gather", [false, false], |on| match on.rank() {
        1 => on.gather_in_place(&mut values(3), 1),
        _ => on.gather_in_place(&mut values(1), 1),
    }),
    operation("scatter", [false, true], |on| match on.rank() {
        1 => on.scatter_in_place(&mut values(3), 1),
        _ => on.scatter_in_place(&mut values(1), 1),
    }),
    operation("allgather", [false, true], |on| on.allgather_in_place(&mut values(3))),
    operation("alltoall", [false, true], |on| on.alltoall(&values(3), &mut values(3))),
    operation("alltoall in place", [false, true], |on| on.alltoall_in_place(&mut values(3))),
    operation("allreduce", [true, true], |on| on.allreduce_in_place(&mut values(1), SUM)),
    operation("reduce", [false, false], |on| on.reduce_in_place(&mut values(1), SUM, 1)),
    operation("reduce_scatter_block", [false, true], |on| on.reduce_scatter_block(&values(3), &mut values(1), SUM)),
    operation("reduce_scatter", [false, true], |on| on.reduce_scatter(&values(3), &mut values(1), &[LEN; 3], SUM)),
    operation("scan", [false, true], |on| on.scan_in_place(&mut values(1), SUM)),
    operation("exclusive_scan", [false, true], |on| on.exclusive_scan_in_place(&mut values(1), SUM)),
    operation("allreduce in a scope", [true, true], |on| {
        let mut values = values(1);
        on.scope(|scope| scope.allreduce_in_place(&mut values, SUM)?.wait())
    }),
];

fn values(parts: usize) -> Vec<u64> {
    vec![1; parts * LEN]
}

/// Runs a job for each operation and transport.
pub(super) fn jobs() {
    for (btl, number) in transports().iter().flat_map(|btl| (0..OPERATIONS.len()).map(move |number| (btl, number))) {
        let options = [vec!["--keep-going".to_owned()], over(btl)].concat();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let finished = finish(role_job(3, &options, "collectives_killed").env(OPERATION, number.to_string()));
        let survived = finished.stdout.lines().filter(|line| *line == "survived").count();
        let inside = !finished.stdout.contains(LEFT);
        assert!(inside && survived == 2, "{} over {btl}: {finished:#?}", OPERATIONS[number].name);
    }
}

/// A rank of the job.
pub(super) fn killed() -> Outcome {
    let number: usize = std::env::var(OPERATION)?.parse()?;
    let operation = OPERATIONS.get(number).ok_or("there is no such operation")?;
    let world = World::init()?;
    let on = world.communicator();
    // Connect all ranks, and test that all is well.
    (operation.call)(on)?;
    on.barrier()?;
    match world.rank() {
        0 => ends(operation, on, 0)?,
        1 => return die_inside(&world, operation),
        _ => {
            fails_soon("receive", || on.recv(&mut [0_u8; 1], 1, 0).map(drop))?;
            ends(operation, on, 1)?;
        }
    }
    fails_soon("receive", || on.recv(&mut [0_u8; 1], 1, 0).map(drop))?;
    others_go_on(on)?;
    survived()
}

/// Begins the operation in one thread. Another one kills this process once it has begun.
fn die_inside(world: &World, operation: &Operation) -> Outcome {
    let before = world.counters().collectives.get();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while world.counters().collectives.get() == before {
                std::thread::yield_now();
            }
            kill_myself().map_err(|error| error.to_string())
        });
        let result = (operation.call)(world.communicator());
        println!("{LEFT}: {result:?}");
        Err(LEFT.into())
    })
}

/// Checks that the operation ends, and that it fails where it must.
fn ends(operation: &Operation, on: &Communicator, survivor: usize) -> Outcome {
    let start = Instant::now();
    let result = (operation.call)(on);
    let name = operation.name;
    if start.elapsed() > SOON {
        return Err(format!("{name} took {:?}", start.elapsed()).into());
    }
    let Err(error) = result else {
        return if operation.needs[survivor] { Err(format!("{name} worked without rank 1").into()) } else { Ok(()) };
    };
    let named = matches!(error.engine_error(), Some(EngineError::PeerFailed { peer: 1, .. }));
    // A survivor may hear from the other one that its part of the operation failed.
    let told = matches!(error.kind(), ErrorKind::Collective { .. });
    if named || told { Ok(()) } else { Err(format!("{name}: {error}").into()) }
}
