//! Sequences of operations, in turn and at random, beside the model.

use cableway::{Communicator, Parts, ReduceOperation, World};

use super::Outcome;
use super::model::{KINDS, Kind, Plan, Step};
use super::rooms::{Room, Rooms};

/// A generator of numbers (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

const OPERATIONS: [ReduceOperation; 5] = [
    ReduceOperation::Sum,
    ReduceOperation::Product,
    ReduceOperation::Min,
    ReduceOperation::Max,
    ReduceOperation::BitXor,
];

/// Every kind, blocking and not, in place and not, for some lengths, in all kinds of memory.
pub(super) fn in_turn() -> Outcome {
    let world = World::init()?;
    let (on, rooms) = (world.communicator(), Rooms::new(&world)?);
    let size = on.size() as usize;
    let mut number = 0;
    for kind in KINDS {
        for len in [0, 1, 7, 500, 20_000] {
            for places in 0..4 {
                let counts = (0..size).map(|rank| len * (rank % 3) + rank).collect();
                let (root, in_place, nonblocking) = (number as usize % size, places & 1 == 1, number % 3 == 1);
                let operation = OPERATIONS[number as usize % OPERATIONS.len()];
                let step = Step { kind, operation, root, len, counts, in_place, nonblocking, number };
                // All on devices, all on hosts, and mixed.
                let me = on.rank() as usize;
                let on_device =
                    [[true, true], [false, false], [me.is_multiple_of(2), !me.is_multiple_of(2)]][number as usize % 3];
                perform(on, &rooms, &step, on_device)?;
                number += 1;
            }
        }
    }
    Ok(on.barrier()?)
}

/// Sequences that all ranks draw from the same seed. Where memory is, each rank draws alone.
pub(super) fn at_random() -> Outcome {
    let world = World::init()?;
    let (on, rooms) = (world.communicator(), Rooms::new(&world)?);
    let size = on.size() as usize;
    for seed in 1..=8_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut own = Random(random.0 ^ u64::from(on.rank() + 1) << 40);
        for number in 0..40 {
            let longest = [4, 40, 3000][random.below(3)];
            let step = Step {
                kind: KINDS[random.below(KINDS.len())],
                operation: OPERATIONS[random.below(OPERATIONS.len())],
                root: random.below(size),
                len: random.below(longest),
                counts: (0..size).map(|_| random.below(longest)).collect(),
                in_place: random.below(2) == 0,
                nonblocking: random.below(2) == 0,
                number,
            };
            let on_device = [own.below(2) == 0, own.below(2) == 0];
            perform(on, &rooms, &step, on_device).map_err(|error| format!("seed {seed}: {error}"))?;
        }
    }
    Ok(on.barrier()?)
}

/// Performs a step, with each of two buffers on the device or not, and compares the result.
pub(super) fn perform(on: &Communicator, rooms: &Rooms<'_>, step: &Step, on_device: [bool; 2]) -> Outcome {
    let failed = |error: String| format!("rank {} of {}, {on_device:?}, {step:?}: {error}", on.rank(), on.size());
    let plan = step.plan(on.rank() as usize);
    let send = rooms.room(on_device[0], &plan.send)?;
    let mut room = rooms.room(on_device[1], &plan.before)?;
    let done = if step.nonblocking { later(on, step, &send, &mut room) } else { None };
    let done = done.unwrap_or_else(|| now(on, step, &plan, &send, &mut room));
    done.map_err(|error| failed(error.to_string()))?;
    let found = room.values()?;
    let wrong = |(_, (found, expected)): &(usize, (&u64, &Option<u64>))| expected.is_some_and(|value| value != **found);
    match found.iter().zip(&plan.after).enumerate().find(wrong) {
        None if found.len() == plan.after.len() => {}
        None => return Err(failed(format!("{} elements instead of {}", found.len(), plan.after.len())).into()),
        Some((at, (found, expected))) => {
            return Err(failed(format!("element {at} is {found:x} instead of {expected:x?}")).into());
        }
    }
    if send.values()? == plan.send { Ok(()) } else { Err(failed("what was sent has changed".to_owned()).into()) }
}

fn now(on: &Communicator, step: &Step, plan: &Plan, send: &Room, room: &mut Room) -> Result<(), cableway::Error> {
    let (root, operation) = (step.root as u32, step.operation);
    let at_root = on.rank() == root;
    let parts = Parts::at(&plan.counts, &plan.displacements);
    let (send, mut room) = (send.view()?, room.view_mut()?);
    match (step.kind, step.in_place) {
        (Kind::Broadcast, _) => on.broadcast(&mut room, root),
        (Kind::Gather, false) => on.gather(&send, root, at_root.then_some(&mut room)),
        (Kind::Gather, true) => on.gather_in_place(&mut room, root),
        (Kind::Gatherv, false) => on.gatherv(&send, root, at_root.then_some((&mut room, parts))),
        (Kind::Gatherv, true) => on.gatherv_in_place(&mut room, parts, root),
        (Kind::Scatter, false) => on.scatter(at_root.then_some(&send), root, &mut room),
        (Kind::Scatter, true) => on.scatter_in_place(&mut room, root),
        (Kind::Scatterv, false) => on.scatterv(at_root.then_some((&send, parts)), root, &mut room),
        (Kind::Scatterv, true) => on.scatterv_in_place(&mut room, parts, root),
        (Kind::Allgather, false) => on.allgather(&send, &mut room),
        (Kind::Allgather, true) => on.allgather_in_place(&mut room),
        (Kind::Allgatherv, false) => on.allgatherv(&send, &mut room, parts),
        (Kind::Allgatherv, true) => on.allgatherv_in_place(&mut room, parts),
        (Kind::Alltoall, false) => on.alltoall(&send, &mut room),
        (Kind::Alltoall, true) => on.alltoall_in_place(&mut room),
        (Kind::Alltoallv, false) => on.alltoallv((&send, Parts::new(&plan.send_counts)), (&mut room, parts)),
        (Kind::Alltoallv, true) => on.alltoallv_in_place(&mut room, parts),
        (Kind::Allreduce, false) => on.allreduce(&send, &mut room, operation),
        (Kind::Allreduce, true) => on.allreduce_in_place(&mut room, operation),
        (Kind::Reduce, false) => on.reduce(&send, operation, root, at_root.then_some(&mut room)),
        (Kind::Reduce, true) => on.reduce_in_place(&mut room, operation, root),
        (Kind::ReduceScatterBlock, false) => on.reduce_scatter_block(&send, &mut room, operation),
        (Kind::ReduceScatterBlock, true) => on.reduce_scatter_block_in_place(&mut room, operation),
        (Kind::ReduceScatter, false) => on.reduce_scatter(&send, &mut room, &plan.counts, operation),
        (Kind::ReduceScatter, true) => on.reduce_scatter_in_place(&mut room, &plan.counts, operation),
        (Kind::Scan, false) => on.scan(&send, &mut room, operation),
        (Kind::Scan, true) => on.scan_in_place(&mut room, operation),
        (Kind::ExclusiveScan, false) => on.exclusive_scan(&send, &mut room, operation),
        (Kind::ExclusiveScan, true) => on.exclusive_scan_in_place(&mut room, operation),
    }
}

/// Performs a step by a nonblocking operation. Returns `None` if there is none.
fn later(on: &Communicator, step: &Step, send: &Room, room: &mut Room) -> Option<Result<(), cableway::Error>> {
    let (root, operation) = (step.root as u32, step.operation);
    let at_root = on.rank() == root;
    let perform = || -> Result<bool, cableway::Error> {
        let (send, mut room) = (send.view()?, room.view_mut()?);
        on.scope(|scope| {
            match (step.kind, step.in_place) {
                (Kind::Broadcast, _) => scope.broadcast(&mut room, root),
                (Kind::Allgather, false) => scope.allgather(&send, &mut room),
                (Kind::Allgather, true) => scope.allgather_in_place(&mut room),
                (Kind::Alltoall, false) => scope.alltoall(&send, &mut room),
                (Kind::Alltoall, true) => scope.alltoall_in_place(&mut room),
                (Kind::Allreduce, false) => scope.allreduce(&send, &mut room, operation),
                (Kind::Allreduce, true) => scope.allreduce_in_place(&mut room, operation),
                (Kind::Reduce, false) => scope.reduce(&send, operation, root, at_root.then_some(&mut room)),
                (Kind::Reduce, true) => scope.reduce_in_place(&mut room, operation, root),
                _ => return Ok(false),
            }?
            .wait()
            .map(|()| true)
        })
    };
    match { perform }() {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    }
}
