//! Sequences of operations, in turn and at random, beside the model.

use cableway::{CollectiveRequest, Communicator, Elements, ElementsMut, Parts, ReduceOperation, Scope, World};

use super::Outcome;
use super::model::{KINDS, Kind, Plan, Step};
use super::rooms::{Room, Rooms};

/// A generator of numbers (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds begin far apart, and none at 0, where the generator would stay.
        Random((seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed >> 32) | 1)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

pub(super) const OPERATIONS: [ReduceOperation; 5] = [
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
                let (root, in_place, nonblocking) = (number as usize % size, places & 1 == 1, places & 2 == 2);
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
    {
        let (send, mut room) = (send.view()?, room.view_mut()?);
        if step.nonblocking {
            on.scope(|scope| begin(scope, on.rank(), step, (&plan, &send), &mut room)?.wait())
        } else {
            now(on, step, &plan, &send, &mut room)
        }
    }
    .map_err(|error| failed(error.to_string()))?;
    Ok(check(&plan, &send, &room).map_err(|error| failed(error.to_string()))?)
}

/// Compares memory after an operation with what the model says.
pub(super) fn check(plan: &Plan, send: &Room, room: &Room) -> Outcome {
    let found = room.values()?;
    let wrong = |(_, (found, expected)): &(usize, (&u64, &Option<u64>))| expected.is_some_and(|value| value != **found);
    match found.iter().zip(&plan.after).enumerate().find(wrong) {
        None if found.len() == plan.after.len() => {}
        None => return Err(format!("{} elements instead of {}", found.len(), plan.after.len()).into()),
        Some((at, (found, expected))) => {
            return Err(format!("element {at} is {found:x} instead of {expected:x?}").into());
        }
    }
    if send.values()? == plan.send { Ok(()) } else { Err("what was sent has changed".into()) }
}

/// Performs a step by a blocking operation.
pub(super) fn now(
    on: &Communicator,
    step: &Step,
    plan: &Plan,
    send: &Elements<'_, u64>,
    room: &mut ElementsMut<'_, u64>,
) -> Result<(), cableway::Error> {
    let (root, operation) = (step.root as u32, step.operation);
    let at_root = on.rank() == root;
    let parts = Parts::at(&plan.counts, &plan.displacements);
    match (step.kind, step.in_place) {
        (Kind::Broadcast, _) => on.broadcast(room, root),
        (Kind::Gather, false) => on.gather(send, root, at_root.then_some(room)),
        (Kind::Gather, true) => on.gather_in_place(room, root),
        (Kind::Gatherv, false) => on.gatherv(send, root, at_root.then_some((room, parts))),
        (Kind::Gatherv, true) => on.gatherv_in_place(room, parts, root),
        (Kind::Scatter, false) => on.scatter(at_root.then_some(send), root, room),
        (Kind::Scatter, true) => on.scatter_in_place(room, root),
        (Kind::Scatterv, false) => on.scatterv(at_root.then_some((send, parts)), root, room),
        (Kind::Scatterv, true) => on.scatterv_in_place(room, parts, root),
        (Kind::Allgather, false) => on.allgather(send, room),
        (Kind::Allgather, true) => on.allgather_in_place(room),
        (Kind::Allgatherv, false) => on.allgatherv(send, room, parts),
        (Kind::Allgatherv, true) => on.allgatherv_in_place(room, parts),
        (Kind::Alltoall, false) => on.alltoall(send, room),
        (Kind::Alltoall, true) => on.alltoall_in_place(room),
        (Kind::Alltoallv, false) => on.alltoallv((send, Parts::new(&plan.send_counts)), (room, parts)),
        (Kind::Alltoallv, true) => on.alltoallv_in_place(room, parts),
        (Kind::Allreduce, false) => on.allreduce(send, room, operation),
        (Kind::Allreduce, true) => on.allreduce_in_place(room, operation),
        (Kind::Reduce, false) => on.reduce(send, operation, root, at_root.then_some(room)),
        (Kind::Reduce, true) => on.reduce_in_place(room, operation, root),
        (Kind::ReduceScatterBlock, false) => on.reduce_scatter_block(send, room, operation),
        (Kind::ReduceScatterBlock, true) => on.reduce_scatter_block_in_place(room, operation),
        (Kind::ReduceScatter, false) => on.reduce_scatter(send, room, &plan.counts, operation),
        (Kind::ReduceScatter, true) => on.reduce_scatter_in_place(room, &plan.counts, operation),
        (Kind::Scan, false) => on.scan(send, room, operation),
        (Kind::Scan, true) => on.scan_in_place(room, operation),
        (Kind::ExclusiveScan, false) => on.exclusive_scan(send, room, operation),
        (Kind::ExclusiveScan, true) => on.exclusive_scan_in_place(room, operation),
    }
}

/// Begins a nonblocking operation that performs a step.
pub(super) fn begin<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    rank: u32,
    step: &Step,
    (plan, send): (&Plan, &'scope Elements<'_, u64>),
    room: &'scope mut ElementsMut<'_, u64>,
) -> Result<CollectiveRequest<'scope, 'env>, cableway::Error> {
    let (root, operation) = (step.root as u32, step.operation);
    let at_root = rank == root;
    let parts = Parts::at(&plan.counts, &plan.displacements);
    match (step.kind, step.in_place) {
        (Kind::Broadcast, _) => scope.broadcast(room, root),
        (Kind::Gather, false) => scope.gather(send, root, at_root.then_some(room)),
        (Kind::Gather, true) => scope.gather_in_place(room, root),
        (Kind::Gatherv, false) => scope.gatherv(send, root, at_root.then_some((room, parts))),
        (Kind::Gatherv, true) => scope.gatherv_in_place(room, parts, root),
        (Kind::Scatter, false) => scope.scatter(at_root.then_some(send), root, room),
        (Kind::Scatter, true) => scope.scatter_in_place(room, root),
        (Kind::Scatterv, false) => scope.scatterv(at_root.then_some((send, parts)), root, room),
        (Kind::Scatterv, true) => scope.scatterv_in_place(room, parts, root),
        (Kind::Allgather, false) => scope.allgather(send, room),
        (Kind::Allgather, true) => scope.allgather_in_place(room),
        (Kind::Allgatherv, false) => scope.allgatherv(send, room, parts),
        (Kind::Allgatherv, true) => scope.allgatherv_in_place(room, parts),
        (Kind::Alltoall, false) => scope.alltoall(send, room),
        (Kind::Alltoall, true) => scope.alltoall_in_place(room),
        (Kind::Alltoallv, false) => scope.alltoallv((send, Parts::new(&plan.send_counts)), (room, parts)),
        (Kind::Alltoallv, true) => scope.alltoallv_in_place(room, parts),
        (Kind::Allreduce, false) => scope.allreduce(send, room, operation),
        (Kind::Allreduce, true) => scope.allreduce_in_place(room, operation),
        (Kind::Reduce, false) => scope.reduce(send, operation, root, at_root.then_some(room)),
        (Kind::Reduce, true) => scope.reduce_in_place(room, operation, root),
        (Kind::ReduceScatterBlock, false) => scope.reduce_scatter_block(send, room, operation),
        (Kind::ReduceScatterBlock, true) => scope.reduce_scatter_block_in_place(room, operation),
        (Kind::ReduceScatter, false) => scope.reduce_scatter(send, room, &plan.counts, operation),
        (Kind::ReduceScatter, true) => scope.reduce_scatter_in_place(room, &plan.counts, operation),
        (Kind::Scan, false) => scope.scan(send, room, operation),
        (Kind::Scan, true) => scope.scan_in_place(room, operation),
        (Kind::ExclusiveScan, false) => scope.exclusive_scan(send, room, operation),
        (Kind::ExclusiveScan, true) => scope.exclusive_scan_in_place(room, operation),
    }
}
