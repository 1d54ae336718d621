//! Ranks that die, leave or panic.

use std::time::{Duration, Instant};

use cableway::{Communicator, EngineError, ErrorKind, Neighbors, ReduceOperation, World};

use super::{Outcome, expect};
use crate::faults::{fails_soon, kill_myself, others_go_on, survived};
use crate::support::SOON;

const LARGE: usize = 1 << 17;

type Operation = fn(&Communicator) -> Result<(), cableway::Error>;

/// Operations of which every rank needs data of rank 1.
const NEEDED: [(&str, Operation); 8] = [
    ("allreduce", |on| on.allreduce_in_place(&mut vec![1_u64; LARGE], ReduceOperation::Sum)),
    ("small allreduce", |on| on.allreduce_in_place(&mut [1_u64; 3], ReduceOperation::Sum)),
    ("allgather", |on| on.allgather(&vec![1_u64; LARGE], &mut vec![0_u64; LARGE * 3])),
    ("alltoall", |on| on.alltoall(&vec![1_u64; LARGE * 3], &mut vec![0_u64; LARGE * 3])),
    ("broadcast", |on| on.broadcast(&mut vec![1_u64; LARGE], 1)),
    ("exchange with neighbours", from_rank_1),
    ("exchange after another one that failed", |on| {
        let _ = from_rank_1(on);
        // Without messages, so that it fails because the first one gave up a receive.
        on.neighbor_alltoall(Neighbors::new())
    }),
    ("scan in a scope", |on| {
        let mut values = vec![1_u64; LARGE];
        on.scope(|scope| scope.allreduce_in_place(&mut values, ReduceOperation::Max)?.wait())
    }),
];

/// The other rank that lives sends nothing, so that the receive from it is given up.
fn from_rank_1(on: &Communicator) -> Result<(), cableway::Error> {
    let (mut values, mut never) = (vec![0_u64; LARGE], [0_u64]);
    let mut neighbors = Neighbors::new();
    neighbors.receive(&mut values, 1, 0)?.receive(&mut never, 2 - on.rank(), 0)?;
    on.neighbor_alltoall(neighbors)
}

/// Rank 1 dies before its part of each operation, or within the first one.
pub(super) fn dies(within: bool) -> Outcome {
    let world = World::init()?;
    let copies: Vec<_> = NEEDED.iter().map(|_| world.communicator().dup()).collect::<Result<_, _>>()?;
    // Connect all ranks, and test that all is well.
    let everyone = world.communicator();
    everyone.allreduce_in_place(&mut vec![1_u64; LARGE], ReduceOperation::Sum)?;
    if world.rank() == 1 {
        // What the others still receive would be lost with this rank.
        for other in [0, 2] {
            everyone.recv(&mut [0_u8; 1], other, 0)?;
        }
        if within {
            let mut values = vec![1_u64; LARGE];
            return copies[0].scope(|scope| {
                let _under_way = scope.allreduce_in_place(&mut values, ReduceOperation::Sum)?;
                kill_myself()
            });
        }
        // The others wait by now or soon.
        std::thread::sleep(Duration::from_millis(200));
        return kill_myself();
    }
    everyone.send(&[0_u8], 1, 0)?;
    let mut knows = false;
    for ((name, operation), on) in NEEDED.iter().zip(&copies) {
        let start = Instant::now();
        let result = operation(on);
        if start.elapsed() > SOON {
            return Err(format!("{name} took {:?}", start.elapsed()).into());
        }
        let Err(error) = result else { return Err(format!("{name} worked without rank 1").into()) };
        // Until this rank detects the death, the other one may end operations here: it gives up those that it begins.
        let told = !knows && matches!(error.kind(), ErrorKind::Collective { .. });
        knows = matches!(error.engine_error(), Some(EngineError::PeerFailed { peer: 1, .. }));
        if !knows && !told {
            return Err(format!("{name}: {error}").into());
        }
    }
    fails_soon("receive", || everyone.recv(&mut [0_u8; 1], 1, 0).map(drop))?;
    others_go_on(everyone)?;
    survived()
}

/// Each rank leaves the job as soon as its part is done.
pub(super) fn leave() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let (me, size) = (on.rank(), u64::from(on.size()));
    let mut values = vec![1_u64; LARGE];
    on.allreduce_in_place(&mut values, ReduceOperation::Sum)?;
    on.broadcast(&mut values, 0)?;
    on.reduce_in_place(&mut values, ReduceOperation::Sum, on.size() - 1)?;
    let expected = if u64::from(me) + 1 == size { size * size } else { size };
    expect(values, vec![expected; LARGE])
}

/// A panic within a scope ends an operation that the others have not begun. They do not hang.
pub(super) fn panics() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().dup()?;
    if on.rank() != 0 {
        world.communicator().barrier()?;
        // It may have got all data that it needs before.
        let _ = on.allreduce_in_place(&mut [1_u64; 3], ReduceOperation::Sum);
    } else {
        let mut values = [1_u64; 3];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            on.scope(|scope| {
                let _under_way = scope.allreduce_in_place(&mut values, ReduceOperation::Sum);
                panic!("this panic is part of the test");
            })
        }));
        expect(panicked.is_err(), true)?;
        world.communicator().barrier()?;
    }
    Ok(world.communicator().barrier()?)
}
