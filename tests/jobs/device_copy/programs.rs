//! The programs of the ranks.

use std::error::Error;
use std::time::{Duration, Instant};

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, DeviceSlice, DeviceSliceMut, World};

use crate::support::{Role, SOON};

pub(super) const ROLES: &[Role] = &[
    ("device_exchange", exchange),
    ("device_ring", ring),
    ("device_both", both),
    ("device_fresh", fresh),
    ("device_settled", settled),
    ("device_many", many),
    ("device_killed", killed),
    ("device_one_way", one_way),
    ("device_has_shared_pools", has_shared_pools),
];

type Outcome = Result<(), Box<dyn Error>>;

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) >> 11) as u8).collect()
}

fn kind(variable: &str, otherwise: BufferKind) -> BufferKind {
    match std::env::var(variable).as_deref() {
        Ok("device") => BufferKind::Device,
        Ok("pool") => BufferKind::Pool,
        Ok("pool_shared") => BufferKind::PoolShared,
        Ok("vmm") => BufferKind::Vmm,
        Ok("vmm_private") => BufferKind::VmmPrivate,
        Ok("vmm_pieces") => BufferKind::VmmPieces,
        Ok("managed") => BufferKind::Managed,
        Ok("pinned") => BufferKind::Pinned,
        _ => otherwise,
    }
}

fn device(world: &World) -> Result<DeviceIndex, cableway::Error> {
    world.devices().initialise()?;
    Ok(DeviceIndex(world.rank() % world.devices().facts()?.devices.len() as u32))
}

fn expect(buffer: &DeviceBuffer, first: usize, expected: &[u8]) -> Outcome {
    let mut found = vec![0; expected.len()];
    buffer.copy_to_host(first, &mut found)?;
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of {}: {} instead of {}", found.len(), found[at], expected[at]).into()),
    }
}

fn tell(world: &World) {
    let counters = world.counters();
    println!("direct {}", counters.device_direct.get());
    println!("fetched {}", counters.protocol_get.get());
    println!("stored {}", counters.protocol_put.get());
    println!("mapped {}", counters.ipc_mappings.get());
    println!("already mapped {}", counters.ipc_hits.get());
}

pub(super) const ROUNDS: u64 = 4;
pub(super) const SIZES: [usize; 6] = [1, 8, 3000, 4096, 100_001, 3 << 20];

/// All ranks exchange messages with each other at the same time, at unaligned offsets.
fn exchange() -> Outcome {
    let world = World::init()?;
    let (on, me, ranks) = (world.communicator(), world.rank() as usize, world.communicator().size() as usize);
    let device = device(&world)?;
    let send_kind = kind("IPC_KIND", BufferKind::Device);
    let into_kind = kind("IPC_INTO", send_kind);
    let small = std::env::var_os("IPC_SIZES").is_some();
    for len in SIZES.into_iter().filter(|len| !small || *len < 16 << 10) {
        let first = len % 7 + 1;
        let mut out = DeviceBuffer::new(world.devices(), device, send_kind, len + 16)?;
        let mut inbox = DeviceBuffer::new(world.devices(), device, into_kind, len + 16)?;
        for round in 0..ROUNDS as usize {
            for shift in 1..ranks {
                let (to, from) = ((me + shift) % ranks, (me + ranks - shift) % ranks);
                let seed = |from: usize, to: usize| ((round * 10 + from) * 10 + to) * 100 + len;
                out.copy_from_host(0, &vec![0xaa; len + 16])?;
                inbox.copy_from_host(0, &vec![0xbb; len + 16])?;
                out.copy_from_host(first, &bytes(seed(me, to), len))?;
                {
                    let part = DeviceSlice::new(&out, first..first + len)?;
                    let mut room = DeviceSliceMut::new(&mut inbox, first + 1..first + 1 + len)?;
                    on.sendrecv(&part, (to as u32, 0), &mut room, (from as u32, 0))?;
                }
                let mut expected = vec![0xbb; len + 16];
                expected[first + 1..first + 1 + len].copy_from_slice(&bytes(seed(from, me), len));
                expect(&inbox, 0, &expected)?;
                expect(&out, first, &bytes(seed(me, to), len))?;
            }
        }
        on.barrier()?;
    }
    tell(&world);
    Ok(on.barrier()?)
}

pub(super) const PASSES: u64 = 200;

/// Passes a message from rank to rank, which nobody else writes.
fn ring() -> Outcome {
    let world = World::init()?;
    let (on, me, ranks) = (world.communicator(), world.rank(), world.communicator().size());
    let (next, previous) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let content = bytes(7, 5000);
    let mut buffer = DeviceBuffer::new(world.devices(), device(&world)?, BufferKind::Device, content.len())?;
    if me == 0 {
        buffer.copy_from_host(0, &content)?;
    }
    for _ in 0..PASSES {
        if me == 0 {
            on.send(&buffer, next, 0)?;
            on.recv(&mut buffer, previous, 0)?;
        } else {
            on.recv(&mut buffer, previous, 0)?;
            on.send(&buffer, next, 0)?;
        }
    }
    expect(&buffer, 0, &content)?;
    tell(&world);
    Ok(on.barrier()?)
}

pub(super) const TURNS: usize = 40;

/// Rank 0 sends device memory into page-locked and device memory of rank 1 in turn, and then small messages into device
/// memory alone.
fn both() -> Outcome {
    let world = World::init()?;
    let (on, device) = (world.communicator(), device(&world)?);
    let len = 100_001;
    let mut own = DeviceBuffer::new(world.devices(), device, BufferKind::Device, len)?;
    let mut page_locked = DeviceBuffer::new(world.devices(), device, BufferKind::Pinned, len)?;
    for turn in 0..3 * TURNS {
        let small = turn >= 2 * TURNS;
        let len = if small { 8 } else { len };
        if world.rank() == 0 {
            own.copy_from_host(0, &bytes(turn, len))?;
            on.send(&DeviceSlice::new(&own, 0..len)?, 1, 0)?;
        } else {
            let buffer = if turn % 2 == 0 && !small { &mut page_locked } else { &mut own };
            on.recv(&mut DeviceSliceMut::new(buffer, 0..len)?, 0, 0)?;
            expect(buffer, 0, &bytes(turn, len))?;
        }
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// Exchanges messages until both are copied from device to device many times in a row. Until memory is mapped, its
/// messages go through the host.
fn settled() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank() as usize, 1 - world.rank());
    let device = device(&world)?;
    let len = std::env::var("IPC_LEN").map_or(70_001, |len| len.parse().expect("a length"));
    let send_kind = kind("IPC_KIND", BufferKind::Device);
    let mut out = DeviceBuffer::new(world.devices(), device, send_kind, len)?;
    let mut inbox = DeviceBuffer::new(world.devices(), device, kind("IPC_INTO", send_kind), len)?;
    let (start, mut again) = (Instant::now(), 0);
    for round in 0.. {
        let seed = |rank: usize| round * 2 + rank;
        out.copy_from_host(0, &bytes(seed(me), len))?;
        let before = world.counters().device_direct.get();
        on.sendrecv(&out, (peer, 0), &mut inbox, (peer, 0))?;
        expect(&inbox, 0, &bytes(seed(peer as usize), len))?;
        let made = [(world.counters().device_direct.get() - before) as u8];
        let mut others = [0];
        on.sendrecv(&made, (peer, 1), &mut others, (peer, 1))?;
        match made[0] + others[0] {
            2 => again += 1,
            fewer if start.elapsed() > SOON => return Err(format!("{fewer} of two in round {round}").into()),
            // Ranks on one device may copy other buffers before they agree on which of them copies.
            _ => again = 0,
        }
        if again > 20 {
            break;
        }
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// Allocates and frees buffers between messages, at the same addresses. The number of descriptors does not grow.
fn fresh() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank() as usize, 1 - world.rank());
    let device = device(&world)?;
    let kind = kind("IPC_KIND", BufferKind::Device);
    // The driver forgets a pool when its last allocation is freed.
    let _kept =
        std::env::var_os("IPC_KEEP").map(|_| DeviceBuffer::new(world.devices(), device, kind, 1)).transpose()?;
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    let mut at_first = 0;
    for round in 0..24 {
        let len = [5000, 70_000, 3 << 20][round % 3];
        let mut out = DeviceBuffer::new(world.devices(), device, kind, len)?;
        let inbox_len = len + round % 2;
        let mut inbox = DeviceBuffer::new(world.devices(), device, kind, inbox_len)?;
        for again in 0..3 {
            let seed = |rank: usize| (round * 3 + again) * 2 + rank;
            out.copy_from_host(0, &bytes(seed(me), len))?;
            on.sendrecv(&out, (peer, 0), &mut inbox, (peer, 0))?;
            expect(&inbox, 0, &bytes(seed(peer as usize), len))?;
        }
        if round == 8 {
            at_first = descriptors()?;
        }
    }
    // Ranks report freed memory from time to time. Exchange messages until both have received the report.
    let start = Instant::now();
    loop {
        let settled = descriptors()? <= at_first + 4;
        let mut others = [0];
        on.sendrecv(&[u8::from(settled)], (peer, 1), &mut others, (peer, 1))?;
        if settled && others == [1] {
            break;
        }
        if start.elapsed() > SOON && !settled {
            return Err(format!("{} descriptors where there were {at_first}", descriptors()?).into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// Sends from many buffers in turn, with several messages in flight.
fn many() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank() as usize, 1 - world.rank());
    let device = device(&world)?;
    let (kind, len) = (kind("IPC_KIND", BufferKind::Device), 60_000);
    let buffer = || DeviceBuffer::new(world.devices(), device, kind, len);
    let mut out = (0..8).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
    let mut inboxes = (0..8).map(|_| buffer()).collect::<Result<Vec<_>, _>>()?;
    for round in 0..10 {
        let seed = |rank: usize, index: usize| (round * 8 + index) * 2 + rank;
        for (index, buffer) in out.iter_mut().enumerate() {
            buffer.copy_from_host(0, &bytes(seed(me, index), len))?;
        }
        on.scope(|scope| -> Result<(), cableway::Error> {
            let receives: Vec<_> = inboxes
                .iter_mut()
                .enumerate()
                .map(|(index, room)| scope.irecv(room, peer, index as i32))
                .collect::<Result<_, _>>()?;
            let sends: Vec<_> = out
                .iter()
                .enumerate()
                .map(|(index, buffer)| scope.isend(buffer, peer, index as i32))
                .collect::<Result<_, _>>()?;
            receives.into_iter().chain(sends).try_for_each(|request| request.wait().map(drop))
        })?;
        for (index, buffer) in inboxes.iter().enumerate() {
            expect(buffer, 0, &bytes(seed(peer as usize, index), len))?;
        }
    }
    tell(&world);
    Ok(on.barrier()?)
}

pub(super) const ONE_WAY: usize = 8;

fn has_shared_pools() -> Outcome {
    let world = World::init()?;
    let made = DeviceBuffer::new(world.devices(), device(&world)?, BufferKind::PoolShared, 1);
    println!("shared pools {}", u8::from(made.is_ok()));
    Ok(())
}

/// Sends from rank 0 to rank 1 only.
fn one_way() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let device = device(&world)?;
    let mut buffer = DeviceBuffer::new(world.devices(), device, BufferKind::Device, 5000)?;
    for round in 0..ONE_WAY {
        if world.rank() == 0 {
            buffer.copy_from_host(0, &bytes(round, 5000))?;
            on.send(&buffer, 1, 0)?;
        } else {
            on.recv(&mut buffer, 0, 0)?;
            expect(&buffer, 0, &bytes(round, 5000))?;
        }
    }
    tell(&world);
    Ok(on.barrier()?)
}

/// Rank 1 dies while the others have its memory mapped and have received a header of its message.
fn killed() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let device = device(&world)?;
    let mut buffer = DeviceBuffer::new(world.devices(), device, kind("IPC_KIND", BufferKind::Device), 4 << 20)?;
    let exchange = |buffer: &mut DeviceBuffer, peer: u32| -> Outcome {
        for round in 0..8 {
            if world.rank() < peer {
                buffer.copy_from_host(0, &bytes(round, 4 << 20))?;
                on.send(&*buffer, peer, 0)?;
            } else {
                on.recv(buffer, peer, 0)?;
                expect(buffer, 0, &bytes(round, 4 << 20))?;
            }
        }
        Ok(())
    };
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        let me = world.rank();
        if me == one || me == other {
            exchange(&mut buffer, one + other - me)?;
        }
    }
    on.barrier()?;
    if world.rank() == 1 {
        return on.scope(|scope| {
            let _sends = [scope.isend(&buffer, 0, 1)?, scope.isend(&buffer, 2, 1)?];
            on.recv(&mut [0_u8; 1], cableway::Any, 2)?;
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
            Err("still alive".into())
        });
    }
    on.probe(1, 1)?;
    if world.rank() == 0 {
        on.send(&[0_u8], 1, 2)?;
    }
    // The announced message may have arrived. The next one cannot.
    let _ = on.recv(&mut buffer, 1, 1);
    if on.recv(&mut buffer, 1, 1).is_ok() {
        return Err("a dead rank sends".into());
    }
    exchange(&mut buffer, 2 - world.rank())?;
    println!("survived");
    Ok(())
}
