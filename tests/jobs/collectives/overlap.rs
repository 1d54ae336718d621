//! Several operations at a time, beside messages, and from several threads.

use std::error::Error;

use cableway::{ReduceOperation, World};

use super::model::{KINDS, Step};
use super::random::{Random, perform};
use super::rooms::{Room, Rooms};
use super::{Outcome, expect};

/// Operations that complete in another order than they began, while messages move.
pub(super) fn overlap() -> Outcome {
    let world = World::init()?;
    let (on, rooms) = (world.communicator(), Rooms::new(&world)?);
    let (me, size) = (on.rank(), on.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    for round in 0..20_u64 {
        let len = [1, 100, 30_000][round as usize % 3];
        let mine = vec![round + u64::from(me); len];
        let sources: Vec<Room> = (0..4).map(|n| rooms.room(n % 2 == 0, &mine)).collect::<Result<_, _>>()?;
        let mut sums: Vec<Room> = (0..4).map(|n| rooms.room(n < 2, &mine)).collect::<Result<_, _>>()?;
        let (mut all, mut large) = (vec![0; len * size as usize], vec![0_u64; len]);
        {
            let views = sources.iter().map(Room::view).collect::<Result<Vec<_>, _>>()?;
            let mut results = sums.iter_mut().map(Room::view_mut).collect::<Result<Vec<_>, _>>()?;
            on.scope(|scope| {
                let gathering = scope.allgather(&mine, &mut all)?;
                let mut reducing = Vec::new();
                for (view, result) in views.iter().zip(&mut results) {
                    reducing.push(scope.allreduce(view, result, ReduceOperation::Sum)?);
                }
                // A peer sends only after an operation that needs this rank's progress.
                if me % 2 == 0 {
                    on.sendrecv(&mine, (next, 1), &mut large, (previous, 1))?;
                    reducing.into_iter().rev().try_for_each(|request| request.wait())?;
                } else {
                    reducing.into_iter().rev().try_for_each(|request| request.wait())?;
                    on.sendrecv(&mine, (next, 1), &mut large, (previous, 1))?;
                }
                while !gathering.is_complete() {}
                gathering.wait()
            })?;
        }
        let sum = (0..u64::from(size)).map(|rank| round + rank).sum();
        for room in &sums {
            expect(room.values()?, vec![sum; len])?;
        }
        expect(large, vec![round + u64::from(previous); len])?;
        expect(all, (0..u64::from(size)).flat_map(|rank| vec![round + rank; len]).collect())?;
    }
    barrier(on)?;
    // The end of the scope waits for a request that was leaked.
    let mut sum = [1_u64];
    on.scope(|scope| {
        std::mem::forget(scope.allreduce_in_place(&mut sum, ReduceOperation::Sum)?);
        Ok::<_, cableway::Error>(())
    })?;
    expect(sum, [u64::from(size)])
}

/// A barrier under way, beside messages and a reduction. Its last member begins it after all others have seen that it is not
/// over.
fn barrier(on: &cableway::Communicator) -> Outcome {
    let (me, last) = (on.rank(), on.size() - 1);
    let (mut go, mut sum) = ([0_u8; 1], [1_u32]);
    on.scope(|scope| {
        if me == last && last > 0 {
            on.recv(&mut go, 0, 2)?;
        }
        let all_are_here = scope.barrier()?;
        let adding = scope.allreduce_in_place(&mut sum, ReduceOperation::Sum)?;
        if me < last {
            let ended = (0..1000).any(|_| all_are_here.is_complete());
            assert!(!ended, "a barrier has ended before its last member began it");
            for other in if me == 0 { 1..last } else { 0..0 } {
                on.recv(&mut go, other, 2)?;
            }
            on.send(&go, if me == 0 { last } else { 0 }, 2)?;
        }
        adding.wait()?;
        all_are_here.wait()
    })?;
    expect(sum, [last + 1])
}

pub(super) fn threads() -> Outcome {
    let world = World::init()?;
    let all: Vec<_> = (0..4).map(|_| world.communicator().dup()).collect::<Result<_, _>>()?;
    let rooms = Rooms::new(&world)?;
    let work = &|thread: u64, on: &cableway::Communicator| -> Result<(), Box<dyn Error + Send + Sync>> {
        let size = on.size() as usize;
        let mut random = Random(thread + 77);
        for number in 0..60 {
            let len = random.below(800);
            let step = Step {
                kind: KINDS[random.below(KINDS.len())],
                operation: ReduceOperation::Sum,
                root: random.below(size),
                len,
                counts: (0..size).map(|_| random.below(100)).collect(),
                in_place: random.below(2) == 0,
                nonblocking: random.below(2) == 0,
                number,
            };
            let on_device = [random.below(2) == 0, random.below(2) == 0];
            perform(on, &rooms, &step, on_device).map_err(|error| format!("thread {thread}: {error}"))?;
        }
        Ok(())
    };
    let failed = std::thread::scope(|threads| {
        let running: Vec<_> = (0..).zip(&all).map(|(thread, on)| threads.spawn(move || work(thread, on))).collect();
        running.into_iter().filter_map(|thread| thread.join().unwrap_or_else(|_| Err("panicked".into())).err()).last()
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(world.communicator().barrier()?),
    }
}
