//! Exchanges with neighbours: rings, pairs, and faces of a matrix.

use cableway::{Datatype, Neighbors, Predefined, ReduceOperation, TypedSlice, TypedSliceMut, World};

use super::rooms::{Room, Rooms};
use super::{Outcome, expect};

/// The directions in which data goes around a ring, which are the numbers of its messages.
const LEFT: u16 = 0;
const RIGHT: u16 = 65_535;

fn values(rank: u32, direction: u16, round: u64, len: usize) -> Vec<u64> {
    (0..len as u64).map(|at| at << 32 | u64::from(direction) << 8 | round << 4 | u64::from(rank)).collect()
}

pub(super) fn neighbors() -> Outcome {
    let world = World::init()?;
    let (on, rooms) = (world.communicator(), Rooms::new(&world)?);
    let (me, size) = (on.rank(), on.size());
    // Of two ranks both are one, and one rank is its own neighbour on both sides.
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    for round in 0..12_u64 {
        let len = [0, 1, 100, 30_000][round as usize % 4];
        let on_device = |at: u64| (round / 4 + at).is_multiple_of(3);
        let sent = [LEFT, RIGHT].map(|direction| rooms.room(on_device(0), &values(me, direction, round, len)));
        let [to_left, to_right] = sent;
        let (to_left, to_right) = (to_left?, to_right?);
        let mut from: Vec<Room> =
            (0..2).map(|at| rooms.room(on_device(at), &vec![7; len])).collect::<Result<_, _>>()?;
        {
            let (to_left, to_right) = (to_left.view()?, to_right.view()?);
            let [from_left, from_right] = &mut from[..] else { return Err("two rooms".into()) };
            let (mut from_left, mut from_right) = (from_left.view_mut()?, from_right.view_mut()?);
            let mut ring = Neighbors::new();
            ring.send(&to_left, left, LEFT)?.send(&to_right, right, RIGHT)?;
            ring.receive(&mut from_left, left, RIGHT)?.receive(&mut from_right, right, LEFT)?;
            match round % 2 == 0 {
                true => on.neighbor_alltoall(ring)?,
                false => on.scope(|scope| scope.neighbor_alltoall(ring)?.wait())?,
            }
        }
        expect(from[0].values()?, values(left, RIGHT, round, len))?;
        expect(from[1].values()?, values(right, LEFT, round, len))?;
        // Only pairs of ranks make this call. One buffer is sent to two places.
        let partner = me ^ 1;
        if partner < size {
            let (mine, mut theirs) = ([round + u64::from(me)], ([0_u64], [0_u64]));
            let mut pair = Neighbors::new();
            pair.send(&mine, partner, 3)?.send(&mine, partner, 4)?;
            pair.receive(&mut theirs.1, partner, 4)?.receive(&mut theirs.0, partner, 3)?;
            on.neighbor_alltoall(pair)?;
            expect(theirs, ([round + u64::from(partner)], [round + u64::from(partner)]))?;
        }
        // Collectives of all ranks are not out of step.
        let mut sum = [1_u64];
        on.allreduce_in_place(&mut sum, ReduceOperation::Sum)?;
        expect(sum, [u64::from(size)])?;
    }
    on.neighbor_alltoall(Neighbors::new())?;
    at_a_time(&world, left, right)?;
    other_lengths(&world)?;
    faces(&world, left, right)
}

/// Two ranks make exchanges that others do not make. All ranks choose the same algorithms for operations all the same, as soon
/// as a rank passes device memory.
pub(super) fn beside() -> Outcome {
    const EXCHANGES: u32 = 16;
    const OPERATIONS: u64 = 64;
    let world = World::init()?;
    let (on, rooms) = (world.communicator(), Rooms::new(&world)?);
    let (me, size) = (on.rank(), on.size());
    if me < 2 {
        for _ in 0..EXCHANGES {
            let (mine, mut theirs) = ([me], [7]);
            let mut pair = Neighbors::new();
            pair.send(&mine, 1 - me, 0)?.receive(&mut theirs, 1 - me, 0)?;
            on.neighbor_alltoall(pair)?;
            expect(theirs, [1 - me])?;
        }
    }
    for round in 0..OPERATIONS {
        // Each rank has device memory at another time.
        let mut sum = rooms.room(round % u64::from(size) == u64::from(me), &[round, 1])?;
        on.allreduce_in_place(&mut sum.view_mut()?, ReduceOperation::Sum)?;
        expect(sum.values()?, [round, 1].map(|value| value * u64::from(size)).to_vec())?;
    }
    Ok(())
}

/// Exchanges match in the order of the calls, in whatever order they are waited for.
fn at_a_time(world: &World, left: u32, right: u32) -> Outcome {
    const CALLS: usize = 5;
    let sent: Vec<[u64; 100]> = (0..CALLS as u64).map(|call| [10 * call + u64::from(world.rank()); 100]).collect();
    let mut received = vec![[0_u64; 100]; CALLS];
    world.communicator().scope(|scope| {
        let mut under_way = Vec::new();
        for (sent, received) in sent.iter().zip(&mut received) {
            let mut ring = Neighbors::new();
            ring.send(sent, left, 0)?.receive(received, right, 0)?;
            under_way.push(scope.neighbor_alltoall(ring)?);
        }
        under_way.into_iter().rev().try_for_each(|request| request.wait())
    })?;
    expect(received, (0..CALLS as u64).map(|call| [10 * call + u64::from(right); 100]).collect())
}

/// A message of another length than its place is an error, also if one of them is empty. The next exchange is right.
fn other_lengths(world: &World) -> Outcome {
    let (on, me) = (world.communicator(), world.rank());
    let partner = me ^ 1;
    if partner >= on.size() {
        return Ok(());
    }
    for (first, second) in [(1, 2), (0, 3), (3, 0), (0, 50_000), (50_000, 1)] {
        // Rank 0 of a pair sends `first` values where the other one expects `second`; what it gets itself is right.
        let (data, mut room) = (vec![1_u64; first.max(7)], vec![0_u64; second.max(7)]);
        let (out, into) =
            if me % 2 == 0 { (&data[..first], &mut room[..7]) } else { (&data[..7], &mut room[..second]) };
        let mut pair = Neighbors::new();
        pair.send(out, partner, 0)?.receive(into, partner, 0)?;
        let ended = on.neighbor_alltoall(pair);
        match (me % 2, ended) {
            (0, Ok(())) => {}
            (1, Err(error)) if error.to_string().contains("bytes where") => {}
            (_, ended) => return Err(format!("{first} values to {second}: {ended:?}").into()),
        }
        let (mine, mut theirs) = ([first as u64, u64::from(me)], [0; 2]);
        let mut pair = Neighbors::new();
        pair.send(&mine, partner, 0)?.receive(&mut theirs, partner, 0)?;
        on.neighbor_alltoall(pair)?;
        expect(theirs, [first as u64, u64::from(partner)])?;
    }
    Ok(())
}

/// The first and the last column of a matrix go to the neighbours' next ones.
fn faces(world: &World, left: u32, right: u32) -> Outcome {
    const ROWS: usize = 300;
    const COLUMNS: usize = 5;
    let me = world.rank() as f64;
    let double = Predefined::Double.datatype();
    let column = Datatype::vector(ROWS as i64, 1, COLUMNS as i64, &double)?.commit();
    let matrix: Vec<f64> = (0..ROWS * COLUMNS).map(|at| at as f64 + me / 8.0).collect();
    let (mut from_left, mut from_right) = (vec![0.0; ROWS * COLUMNS], vec![0.0; ROWS * COLUMNS]);
    {
        let first = TypedSlice::new(&matrix[..], 1, &column)?;
        let last = TypedSlice::new(&matrix[COLUMNS - 1..], 1, &column)?;
        let mut ghost_left = TypedSliceMut::new(&mut from_left[..], 1, &column)?;
        let mut ghost_right = TypedSliceMut::new(&mut from_right[..], 1, &column)?;
        let mut exchange = Neighbors::new();
        exchange.receive(&mut ghost_left, left, RIGHT)?.receive(&mut ghost_right, right, LEFT)?;
        exchange.send(&first, left, LEFT)?.send(&last, right, RIGHT)?;
        world.communicator().neighbor_alltoall(exchange)?;
    }
    let ghosts = |rank: u32, column: usize| -> Vec<f64> {
        let at =
            |at: usize| if at.is_multiple_of(COLUMNS) { (at + column) as f64 + f64::from(rank) / 8.0 } else { 0.0 };
        (0..ROWS * COLUMNS).map(at).collect()
    };
    expect(from_left == ghosts(left, COLUMNS - 1), true)?;
    expect(from_right == ghosts(right, 0), true)
}
