//! Operations on memory that the ranks of a node share: loads and stores of the caller.

use std::time::Instant;

use cableway::{
    Atomic, Communicator, DeviceIndex, DeviceSlice, DeviceSliceMut, EngineError, Place, Refusal, RemoteKey, SendBuffer,
    Signal, SignalUpdate, World,
};

use super::{Outcome, WINDOWS, Window, exchange, expect, expect_bytes, hear, on_device, pattern, tell};
use crate::support::{Driver, SOON, finish, over, role_job};

const LEN: usize = 100_000;

/// Puts to a place until one is a store.
fn until_stored(world: &World, at: Place<'_>) -> Outcome {
    until_direct(world, &0_u64.to_le_bytes(), at)
}

/// Puts to a place until one is direct. The first put asks for the memory, and the answer comes in a later call.
fn until_direct(world: &World, data: &(impl SendBuffer + ?Sized), at: Place<'_>) -> Outcome {
    let (before, end) = (world.counters().one_sided_direct.get(), Instant::now() + SOON);
    while world.counters().one_sided_direct.get() == before {
        expect(Instant::now() < end, true)?;
        world.communicator().put(data, at)?;
        world.progress();
    }
    Ok(())
}

/// Returns the numbers of direct operations and of sent messages.
fn counted(world: &World) -> [u64; 2] {
    let counters = world.counters();
    [counters.one_sided_direct.get(), counters.sends_eager.get() + counters.sends_rendezvous.get()]
}

/// Rank 0 works on the memory of rank 1, which makes no progress meanwhile. Every operation is complete at the call, and
/// none of them sends a message.
pub(super) fn alone() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let windows = [Window::new(&world, None, LEN)?, Window::new(&world, None, 16)?];
    let keys = exchange(on, &windows)?;
    let (data, words) = (&keys[2], &keys[3]);
    if world.rank() == 1 {
        hear::<u8>(on, 0)?;
        // This reads without progress.
        while windows[1].load(8)? == 0 {}
        let len = expect_signalled(&windows)?;
        expect(windows[1].load(0)?, u64::from(len) + 1)?;
        return Ok(on.barrier()?);
    }
    until_stored(&world, data.at(0))?;
    until_stored(&world, words.at(8))?;
    tell(on, 1, 0_u8)?;
    let mut room = vec![0_u8; LEN];
    let before = counted(&world);
    let mut operations = 0;
    for (round, len) in [0, 1, 8, 64, 8192, 8193, LEN].into_iter().enumerate() {
        let sent = pattern(len, round as u32);
        let signal = Signal { at: words.at(0), update: SignalUpdate::Set(len as u64) };
        on.put_signal(&sent, data.at(0), signal)?;
        on.get(&mut room[..len], data.at(0))?;
        expect_bytes("what was put", &room[..len], &sent)?;
        expect(on.fetch_add(0_u64, words.at(0))?, len as u64)?;
        room[..len].fill(0);
        let signal = Signal { at: words.at(0), update: SignalUpdate::Add(1) };
        on.get_signal(&mut room[..len], data.at(0), signal)?;
        expect_bytes("what was put", &room[..len], &sent)?;
        expect(on.fetch_add(0_u64, words.at(0))?, len as u64 + 1)?;
        on.scope(|scope| {
            let put = scope.put(&sent, data.at((LEN - len) as u64))?;
            expect(put.is_complete(), true)?;
            let status = put.wait()?;
            expect((status.source, status.bytes), (1, len as u64))
        })?;
        operations += 6;
    }
    expect(on.atomic(Atomic::CompareSwap { expected: 0_u32, new: 5 }, words.at(4))?, 0)?;
    expect(on.atomic(Atomic::Swap(0_u32), words.at(4))?, 5)?;
    on.put_signal(&[0_u8; 0], data.at(0), Signal { at: words.at(8), update: SignalUpdate::Add(1) })?;
    let after = counted(&world);
    expect([after[0] - before[0], after[1] - before[1]], [operations + 3, 0])?;
    Ok(on.barrier()?)
}

pub(super) fn signals_of_device_memory() {
    let options = [over("sm"), Driver::find().options()].concat();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    finish(role_job(2, &options, "one_sided_mapped_signals").env(WINDOWS, "shared")).assert_success();
}

/// Rank 0 moves device memory of rank 1, which makes no progress meanwhile, and gives the signals itself.
pub(super) fn signals() -> Outcome {
    const LEN: usize = 5000;
    let world = World::init()?;
    world.devices().initialise()?;
    let (on, device) = (world.communicator(), DeviceIndex(0));
    let windows = [Window::new(&world, Some(device), LEN)?, Window::new(&world, None, 8)?];
    let keys = exchange(on, &windows)?;
    let (data, word) = (&keys[2], &keys[3]);
    let sent = pattern(LEN, 3);
    if world.rank() == 1 {
        hear::<u8>(on, 0)?;
        // This reads without progress, and may see the second signal first.
        while windows[1].load(0)? < 1 {}
        expect_bytes("what was put", &windows[0].bytes(LEN)?, &sent)?;
        while windows[1].load(0)? < 2 {}
        return Ok(on.barrier()?);
    }
    until_stored(&world, word.at(0))?;
    let mut buffer = on_device(&world, device, &sent)?;
    until_direct(&world, &DeviceSlice::new(&buffer, 0..LEN)?, data.at(0))?;
    tell(on, 1, 0_u8)?;
    let before = counted(&world);
    let add = Signal { at: word.at(0), update: SignalUpdate::Add(1) };
    on.put_signal(&DeviceSlice::new(&buffer, 0..LEN)?, data.at(0), add)?;
    on.get_signal(&mut DeviceSliceMut::new(&mut buffer, 0..LEN)?, data.at(0), add)?;
    let after = counted(&world);
    expect([after[0] - before[0], after[1] - before[1]], [2, 0])?;
    Ok(on.barrier()?)
}

fn expect_signalled(windows: &[Window]) -> Result<u32, Box<dyn std::error::Error>> {
    expect_bytes("what was put", &windows[0].bytes(LEN)?, &pattern(LEN, 6))?;
    Ok(LEN as u32)
}

/// A store waits for operations before a fence. Rank 1 makes no progress until rank 2 stores a word there, so that a put
/// by its owner stays under way.
pub(super) fn fenced() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let (shared, plain) = (Window::new(&world, None, 24)?, world.register(vec![0_u64])?);
    let mut keys = vec![RemoteKey::default(); 6];
    on.allgather(&[*shared.key(), *plain.key()], &mut keys)?;
    let (stored, owned) = (&keys[2], &keys[3]);
    match world.rank() {
        1 => {
            hear::<u8>(on, 0)?;
            tell(on, 0, 0_u8)?;
            // From here on without progress.
            while shared.load(0)? == 0 {}
            // Rank 0 has seen that its store is held.
            expect(shared.load(8)?, 0)?;
            hear::<u8>(on, 0)?;
            expect([shared.load(8)?, plain.load(0)?, shared.load(16)?], [7, 7, 8])?;
        }
        0 => {
            until_stored(&world, stored.at(8))?;
            hear::<u8>(on, 2)?;
            tell(on, 1, 0_u8)?;
            hear::<u8>(on, 1)?;
            let seven = 7_u64.to_le_bytes();
            on.scope(|scope| {
                let by_owner = scope.put(&seven, owned.at(0))?;
                on.fence(1)?;
                let before = counted(&world)[0];
                let held = scope.put(&seven, stored.at(8))?;
                expect((counted(&world)[0], by_owner.is_complete(), held.is_complete()), (before, false, false))?;
                tell(on, 2, 0_u8)?;
                by_owner.wait()?;
                held.wait()?;
                Ok::<_, Box<dyn std::error::Error>>(())
            })?;
            // Nothing is held any more.
            let before = counted(&world)[0];
            on.put(&8_u64.to_le_bytes(), stored.at(16))?;
            expect(counted(&world)[0], before + 1)?;
            tell(on, 1, 0_u8)?;
        }
        _ => {
            until_stored(&world, stored.at(0))?;
            tell(on, 0, 0_u8)?;
            hear::<u8>(on, 0)?;
            let before = counted(&world)[0];
            on.put(&1_u64.to_le_bytes(), stored.at(0))?;
            expect(counted(&world)[0], before + 1)?;
        }
    }
    Ok(on.barrier()?)
}

/// Threads of rank 0 store into a registration of rank 1 until it ends. Nothing is stored after its end.
pub(super) fn ended() -> Outcome {
    const THREADS: u64 = 3;
    let world = World::init()?;
    let on = world.communicator();
    for round in 0..20_u8 {
        let windows = [Window::new(&world, None, 64 * THREADS as usize)?];
        let keys = exchange(on, &windows)?;
        if world.rank() == 1 {
            hear::<u8>(on, 0)?;
            let [window] = windows;
            let Window::Shared(memory) = window else { return Err("the window is not shared".into()) };
            let memory = memory.into_memory();
            let last = memory.to_vec();
            tell(on, 0, round)?;
            hear::<u8>(on, 0)?;
            // All threads have tried again.
            expect(memory.to_vec() == last, true)?;
            continue;
        }
        until_stored(&world, keys[1].at(0))?;
        let refusals = std::thread::scope(|scope| {
            let store = |thread: u64| store_until_refused(on, keys[1].at(64 * thread));
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || store(thread))).collect();
            let told = tell(on, 1, round).map_err(|error| error.to_string());
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().map_err(|_| "a panic")).collect();
            told.map(|()| ended)
        })?;
        for refused in refusals {
            refused??;
        }
        expect(hear::<u8>(on, 1)?, round)?;
        for thread in 0..THREADS {
            expect(store_until_refused(on, keys[1].at(64 * thread))?, 0)?;
        }
        tell(on, 1, round)?;
    }
    Ok(on.barrier()?)
}

/// Puts until the registration has ended. Returns the number of puts before.
fn store_until_refused(on: &Communicator, at: Place<'_>) -> Result<u64, String> {
    let end = Instant::now() + SOON;
    let mut puts = 0_u64;
    while Instant::now() < end {
        match on.put(&[puts; 8], at) {
            Ok(()) => puts += 1,
            Err(error) => match error.engine_error() {
                Some(EngineError::Refused { refusal: Refusal::Deregistered, .. }) => return Ok(puts),
                _ => return Err(error.to_string()),
            },
        }
    }
    Err("the registration did not end".into())
}
