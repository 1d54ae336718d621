//! Puts and gets of every size, between every pair of memories.

use std::error::Error;
use std::time::Instant;

use cableway::{DeviceBuffer, DeviceSlice, DeviceSliceMut, Signal, SignalUpdate, World};

use super::{Outcome, Window, exchange, expect, expect_bytes, hear, on_device, pattern, places, tell};
use crate::support::SOON;

const SIZES: [usize; 6] = [0, 8, 8116, 8117, 65_536, 1 << 20];

/// The bytes before the data hold signals.
const SIGNALS: usize = 64;

/// The caller's memory.
enum Room {
    Host(Vec<u8>),
    Device(DeviceBuffer),
}

/// Both ranks put to each other at the same time, and get what they put.
pub(super) fn moves() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let places = places(&world)?;
    let len = SIGNALS + (1 << 20) + 64;
    let windows: Vec<Window> =
        places.iter().map(|&device| Window::new(&world, device, len)).collect::<Result<_, _>>()?;
    let keys = exchange(on, &windows)?;
    let theirs = &keys[places.len() * peer as usize..][..places.len()];
    let mut models = vec![vec![0_u8; len]; places.len()];
    let mut signals = vec![0_u64; places.len()];
    let mut seed = 0;
    for size in SIZES {
        for offset in [SIGNALS, SIGNALS + 13] {
            for (remote, local) in (0..places.len()).flat_map(|remote| places.iter().map(move |local| (remote, local)))
            {
                seed += 2;
                let what = format!("{size} bytes at {offset}, {local:?} to {:?}", places[remote]);
                let (data, coming) = (pattern(size, seed + me), pattern(size, seed + peer));
                let room = match local {
                    None => Room::Host(data.clone()),
                    Some(device) => Room::Device(on_device(&world, *device, &data)?),
                };
                let to = theirs[remote].at(offset as u64);
                if seed % 4 == 0 {
                    match &room {
                        Room::Host(data) => on.put(data, to)?,
                        Room::Device(buffer) => on.put(&DeviceSlice::new(buffer, 0..size)?, to)?,
                    }
                    on.barrier()?;
                } else {
                    // The signal may lie in another memory than the data.
                    let with = seed as usize / 2 % places.len();
                    signals[with] += 1;
                    let signal = Signal { at: theirs[with].at(8), update: SignalUpdate::Add(1) };
                    match &room {
                        Room::Host(data) => on.put_signal(data, to, signal)?,
                        Room::Device(buffer) => on.put_signal(&DeviceSlice::new(buffer, 0..size)?, to, signal)?,
                    }
                    windows[with].wait_until(8, peer, |count| count == signals[with])?;
                    models[with][8..16].copy_from_slice(&signals[with].to_le_bytes());
                }
                models[remote][offset..offset + size].copy_from_slice(&coming);
                expect_bytes(
                    &what,
                    &windows[remote].bytes(offset + size + 32)?,
                    &models[remote][..offset + size + 32],
                )?;
                let found = match local {
                    None => {
                        let mut room = vec![0x55; size];
                        on.get(&mut room, to)?;
                        room
                    }
                    Some(device) => {
                        let mut buffer = on_device(&world, *device, &vec![0x55; size + 1])?;
                        on.get(&mut DeviceSliceMut::new(&mut buffer, 0..size)?, to)?;
                        let mut room = vec![0; size + 1];
                        buffer.copy_to_host(0, &mut room)?;
                        expect(room.pop(), Some(0x55))?;
                        room
                    }
                };
                expect_bytes(&format!("get of {what}"), &found, &data)?;
                on.barrier()?;
            }
        }
    }
    Ok(())
}

/// Many operations are under way at a time, in order where a fence says so.
pub(super) fn scopes() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    for device in places(&world)? {
        let windows = [Window::new(&world, device, 1 << 20)?];
        let keys = exchange(on, &windows)?;
        let key = &keys[peer as usize];
        let parts: Vec<_> = (0..64).map(|part| pattern(16 << 10, part + me)).collect();
        let (large, small) = (pattern(1 << 20, 500 + me), pattern(100, 600 + me));
        let mut room = vec![0; 1 << 20];
        let mut old = 7_u64;
        on.scope(|scope| {
            let requests: Vec<_> = parts
                .iter()
                .enumerate()
                .map(|(part, data)| scope.put(data, key.at((part * (16 << 10)) as u64)))
                .collect::<Result<_, _>>()?;
            for request in requests {
                let status = request.wait()?;
                expect((status.source, status.bytes), (peer, 16 << 10))?;
            }
            // The last byte of each operation counts only if the fences hold.
            let first = scope.put(&large, key.at(0))?;
            on.fence(peer)?;
            let second = scope.put(&small, key.at(8))?;
            on.fence_all();
            let word = scope.atomic(&mut old, cableway::Atomic::Swap(u64::from(me)), key.at(0))?;
            on.fence(peer)?;
            // The signal changes a word of the data after that was read.
            let signal = Signal { at: key.at(0), update: SignalUpdate::Set(99) };
            let seen = scope.get_signal(&mut room, key.at(0), signal)?;
            on.flush(peer)?;
            for request in [&first, &second, &word, &seen] {
                expect(request.is_complete(), true)?;
            }
            seen.wait()?;
            Ok::<_, Box<dyn Error>>(())
        })?;
        expect(&old.to_le_bytes()[..], &large[..8])?;
        expect(&room[..8], &u64::from(me).to_le_bytes()[..])?;
        expect_bytes("small", &room[8..108], &small)?;
        expect_bytes("large", &room[108..], &large[108..])?;
        on.barrier()?;
        expect(windows[0].load(0)?, 99)?;
        on.barrier()?;
    }
    // Borrowed memory is registered until the end of its scope. What was leaked ends, too.
    let (mut table, ones) = ([0_u32; 300], [me + 1; 10]);
    let key = on.scope(|scope| {
        let window = scope.register(&mut table)?;
        let mut keys = [cableway::RemoteKey::default(); 2];
        on.allgather(&[*window.key()], &mut keys)?;
        let _dropped = scope.put(&ones, keys[peer as usize].at(4))?;
        on.flush_all();
        on.barrier()?;
        std::mem::forget(window);
        Ok::<_, cableway::Error>(keys[peer as usize])
    })?;
    expect((table[0], &table[1..11], table[11]), (0, &[peer + 1; 10][..], 0))?;
    on.barrier()?;
    let error = on.put(&[1_u32], key.at(0)).err().ok_or("a put into a scope that has ended")?;
    expect(error.to_string().contains("deregistered"), true)?;
    expect(table[0], 0)?;
    Ok(on.barrier()?)
}

pub(super) fn threads() -> Outcome {
    const THREADS: usize = 4;
    const ROUNDS: u32 = 100;
    const PART: usize = 20_000;
    let world = World::init()?;
    let (on, peer) = (world.communicator(), 1 - world.rank());
    for device in places(&world)? {
        let windows = [Window::new(&world, device, 8 + THREADS * PART)?];
        let keys = exchange(on, &windows)?;
        let key = &keys[peer as usize];
        std::thread::scope(|scope| {
            let work = |thread: usize| -> Result<(), String> {
                let place = key.at((8 + thread * PART) as u64);
                for round in 0..ROUNDS {
                    let len = [8, 700, PART][round as usize % 3];
                    let data = pattern(len, round * 8 + thread as u32);
                    let signal = Signal { at: key.at(0), update: SignalUpdate::Add(1) };
                    on.put_signal(&data, place, signal).map_err(|error| error.to_string())?;
                    let mut room = vec![0; len];
                    on.get_signal(&mut room, place, signal).map_err(|error| error.to_string())?;
                    expect_bytes("a thread's part", &room, &data).map_err(|error| error.to_string())?;
                }
                Ok(())
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
        })?;
        windows[0].wait_until(0, peer, |count| count == 2 * THREADS as u64 * u64::from(ROUNDS))?;
        on.barrier()?;
    }
    Ok(())
}

/// Rank 1 makes no call of the library meanwhile.
pub(super) fn computes() -> Outcome {
    let world = World::options()?.set("progress_thread", "yes")?.init()?;
    let on = world.communicator();
    let windows = [Window::new(&world, None, 1 << 20)?];
    let keys = exchange(on, &windows)?;
    if world.rank() == 0 {
        let data = pattern(1 << 20, 1);
        on.put(&data[..8], keys[1].at(8))?;
        on.put(&data, keys[1].at(0))?;
        on.fetch_add(1_u64, keys[1].at(0))?;
        // Only now rank 1 may call the library again.
        drop(std::fs::File::create(flag())?);
        return expect(hear::<u8>(on, 1)?, 1);
    }
    let start = Instant::now();
    while !flag().exists() && start.elapsed() < SOON {
        std::thread::yield_now();
    }
    let came = flag().exists();
    let _ = std::fs::remove_file(flag());
    tell(on, 0, u8::from(came))?;
    expect(came, true)
}

/// Returns a file that says that rank 0 is done. The job's ranks have the same parent.
pub(super) fn flag() -> std::path::PathBuf {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    std::env::temp_dir().join(format!("cableway-one-sided-{parent}"))
}
