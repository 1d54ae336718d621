//! Operations on little data, which ranks exchange through slots in shared host memory.

use cableway::{BufferKind, Communicator, DeviceBuffer, DeviceIndex, ReduceOperation, World};
use rustix::process::{WaitOptions, waitpid};

use super::rooms::{Room, Rooms};
use super::{Driver, Outcome, expect, options};
use crate::faults::{fails_soon, kill_myself, survived, survived_all};
use crate::forks::fork;
use crate::support::{finish, libdir_option, role_job};

/// Elements of each rank's block.
const LEN: usize = 20;
/// Operations in which the members agree.
const AGREEMENT: usize = 8;
const ROUNDS: usize = 24;
/// The environment variable with another number of rounds, for runs on devices.
const COUNT: &str = "CABLEWAY_TEST_ONE_SHOTS";

const LATE: i32 = 1;
const DEAD: i32 = 2;

/// Returns the options of a job whose ranks have devices of their own.
fn on_devices(more: &[&str]) -> Vec<String> {
    let driver = Driver::find().folder.to_string_lossy().into_owned();
    let all = [more, &["--set", "btl=sm,self", libdir_option(), &driver]].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// Runs jobs of ranks with devices of their own.
pub(super) fn jobs(role: &str, more: &[&str], environment: &[(&str, &str)]) {
    for ranks in [2, 3, 4] {
        let all = on_devices(more);
        let mut job = role_job(ranks, &options(&all), role);
        job.env("SIM_CUDA_DEVICES", "4");
        if let Ok(rounds) = std::env::var(COUNT) {
            job.env(COUNT, rounds);
        }
        for (name, value) in environment {
            job.env(name, value);
        }
        finish(&mut job).assert_success();
    }
}

/// Rank 1 dies while the others wait for its data.
pub(super) fn dying() {
    let all = on_devices(&["--keep-going"]);
    survived_all("sm", finish(role_job(3, &options(&all), "collectives_one_shot_dies").env("SIM_CUDA_DEVICES", "4")));
}

/// Returns whether this rank has a device of its own. Ranks that share a device use no slots, so those that have none pass
/// host memory.
fn has_device(world: &World) -> Result<bool, Box<dyn std::error::Error>> {
    world.devices().initialise()?;
    Ok((world.rank() as usize) < world.devices().facts()?.devices.len())
}

fn value(rank: usize, index: usize, round: usize) -> u64 {
    (rank * 1_000_003 + index * 31 + round * 7) as u64
}

/// The memory of a rank's operations, on the host or on its device.
struct Memory {
    send: Room,
    receive: Room,
    own: Room,
    share: Room,
    in_place: Room,
}

impl Memory {
    fn new(rooms: &Rooms<'_>, on_device: bool, size: usize) -> Result<Memory, cableway::Error> {
        let room = |len: usize| rooms.room(on_device, &vec![0; len]);
        let (all, one) = (size * LEN, LEN);
        Ok(Memory { send: room(all)?, receive: room(all)?, own: room(one)?, share: room(one)?, in_place: room(all)? })
    }
}

/// Performs each operation, and checks the results.
fn perform(on: &Communicator, memory: &mut Memory, share: &mut Room, round: usize) -> Outcome {
    let (me, size) = (on.rank() as usize, on.size() as usize);
    let Memory { send, receive, own, in_place, .. } = memory;
    let input: Vec<u64> = (0..size * LEN).map(|index| value(me, index, round)).collect();
    let sum = |index: usize| (0..size).map(|rank| value(rank, index, round)).sum::<u64>();
    send.write(&input)?;
    on.allreduce(&send.view()?, &mut receive.view_mut()?, ReduceOperation::Sum)?;
    expect(receive.values()?, (0..size * LEN).map(sum).collect())?;
    on.alltoall(&send.view()?, &mut receive.view_mut()?)?;
    let from_all = (0..size).flat_map(|rank| (0..LEN).map(move |i| value(rank, me * LEN + i, round)));
    expect(receive.values()?, from_all.collect())?;
    own.write(&input[..LEN])?;
    on.allgather(&own.view()?, &mut receive.view_mut()?)?;
    let of_all = (0..size).flat_map(|rank| (0..LEN).map(move |index| value(rank, index, round)));
    expect(receive.values()?, of_all.collect())?;
    on.reduce_scatter_block(&send.view()?, &mut share.view_mut()?, ReduceOperation::Sum)?;
    expect(share.values()?, (0..LEN).map(|index| sum(me * LEN + index)).collect())?;
    in_place.write(&input)?;
    on.allreduce_in_place(&mut in_place.view_mut()?, ReduceOperation::Sum)?;
    expect(in_place.values()?, (0..size * LEN).map(sum).collect())
}

/// Performs operations on device memory, and on host memory in some ranks. Once the members have agreed, none moves data by
/// messages.
pub(super) fn role() -> Outcome {
    let world = World::init()?;
    let (on, rooms) = (world.communicator(), Rooms::new(&world)?);
    let (me, size) = (on.rank() as usize, on.size() as usize);
    let own = has_device(&world)?;
    let (on_host, on_device) = (&mut Memory::new(&rooms, false, size)?, &mut Memory::new(&rooms, own, size)?);
    let Memory { share: mut spare, .. } = Memory::new(&rooms, own, size)?;
    let rounds = std::env::var(COUNT).ok().and_then(|rounds| rounds.parse().ok());
    for round in 0..rounds.unwrap_or(ROUNDS) {
        let before = world.counters();
        // In some rounds some ranks pass host memory, or both kinds.
        match ((me + round).is_multiple_of(3) && round >= AGREEMENT, round.is_multiple_of(4)) {
            (false, false) => perform(on, on_device, &mut on_host.share, round)?,
            (false, true) => perform(on, on_device, &mut spare, round)?,
            (true, _) => perform(on, on_host, &mut on_device.share, round)?,
        }
        let after = world.counters();
        if round >= AGREEMENT {
            let moved = |counters: &cableway::Counters| {
                let counters =
                    [&counters.bytes_eager, &counters.bytes_get, &counters.bytes_put, &counters.bytes_fragments];
                counters.map(|counter| counter.get())
            };
            expect(moved(&after), moved(&before))?;
            expect(after.collective_one_shots.get() - before.collective_one_shots.get(), 5)?;
        }
    }
    Ok(on.barrier()?)
}

/// A buffer of one number, in device memory if this rank has a device.
fn number(world: &World, value: u64) -> Result<Room, Box<dyn std::error::Error>> {
    if !has_device(world)? {
        return Ok(Room::Host(vec![value]));
    }
    let device = DeviceIndex(world.rank());
    let mut buffer = DeviceBuffer::new(world.devices(), device, BufferKind::Device, 8)?;
    buffer.copy_from_host(0, &value.to_le_bytes())?;
    Ok(Room::Device(buffer))
}

fn agree(on: &Communicator, world: &World) -> Outcome {
    let (send, mut receive) = (number(world, 1)?, number(world, 0)?);
    for _ in 0..AGREEMENT {
        on.allreduce(&send.view()?, &mut receive.view_mut()?, ReduceOperation::Sum)?;
    }
    expect(receive.values()?, vec![u64::from(on.size())])
}

/// Waits until a kernel of this process has ended without the data of others.
fn wait_for_late_kernel(world: &World) {
    while world.counters().collective_late_kernels.get() == 0 {
        std::thread::yield_now();
    }
}

/// The last rank begins an operation only after the kernels of all others have given up, so that they are launched again.
pub(super) fn late() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().dup()?;
    agree(&on, &world)?;
    let everyone = world.communicator();
    let last = on.size() - 1;
    // All ranks begin the next operation after the agreement's last one.
    everyone.barrier()?;
    let (own, before) = (has_device(&world)?, world.counters().collective_late_kernels.get());
    let mut operand = number(&world, u64::from(on.rank()) + 1)?;
    let sum = u64::from(on.size() * (on.size() + 1) / 2);
    if on.rank() == last {
        for rank in 0..last {
            everyone.recv(&mut [0_u8; 1], rank, LATE)?;
        }
        on.allreduce_in_place(&mut operand.view_mut()?, ReduceOperation::Sum)?;
    } else {
        std::thread::scope(|threads| -> Outcome {
            let told = threads.spawn(|| {
                while own && world.counters().collective_late_kernels.get() == before {
                    std::thread::yield_now();
                }
                everyone.send(&[0_u8; 1], last, LATE)
            });
            on.allreduce_in_place(&mut operand.view_mut()?, ReduceOperation::Sum)?;
            Ok(told.join().map_err(|_| "a thread panicked")??)
        })?;
    }
    expect(operand.values()?, vec![sum])?;
    agree(&on, &world)
}

/// The last rank leaves without a call that the others make.
pub(super) fn leaves() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().dup()?;
    agree(&on, &world)?;
    if on.rank() + 1 == on.size() {
        return Ok(());
    }
    let mut operand = if on.rank() == 0 { number(&world, 1)? } else { Room::Host(vec![1]) };
    match on.allreduce_in_place(&mut operand.view_mut()?, ReduceOperation::Sum) {
        // Its error names the rank that left, or one that has failed because of that.
        Err(_) => Ok(()),
        Ok(()) => Err("an operation has ended without the data of a rank".into()),
    }
}

/// A forked child has no slots, and does not touch those of its parent.
pub(super) fn forks() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().dup()?;
    agree(&on, &world)?;
    let Some(child) = fork()? else {
        let mut operand = [1_u64];
        let refused = on.allreduce_in_place(&mut operand, ReduceOperation::Sum).is_err();
        drop(on);
        std::process::exit(if refused && operand == [1] { 0 } else { 1 });
    };
    let Some((_, status)) = waitpid(Some(child), WaitOptions::empty())? else { return Err("no child".into()) };
    expect(status.exit_status(), Some(0))?;
    agree(&on, &world)
}

/// Rank 1 dies while rank 0 waits for its data in device memory, and rank 2 in host memory.
pub(super) fn dies() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().dup()?;
    agree(&on, &world)?;
    let everyone = world.communicator();
    match on.rank() {
        1 => {
            everyone.recv(&mut [0_u8; 1], 0, DEAD)?;
            kill_myself()
        }
        rank => std::thread::scope(|threads| -> Outcome {
            let mut operand = if rank == 0 { number(&world, 1)? } else { Room::Host(vec![1]) };
            if rank == 0 {
                threads.spawn(|| {
                    wait_for_late_kernel(&world);
                    everyone.send(&[0_u8; 1], 1, DEAD).map_err(|error| println!("{error}"))
                });
            }
            fails_soon("allreduce", || on.allreduce_in_place(&mut operand.view_mut()?, ReduceOperation::Sum))?;
            let (send, mut receive) = (Room::Host(vec![1]), Room::Host(vec![0]));
            fails_soon("another one", || on.allreduce(&send.view()?, &mut receive.view_mut()?, ReduceOperation::Sum))?;
            survived()
        }),
    }
}
