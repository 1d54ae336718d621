//! Signals and atomic operations.

use cableway::{Atomic, Place, Signal, SignalUpdate, World};

use super::{Outcome, Window, exchange, expect, expect_bytes, places};

/// Rank 0 puts data with a signal, round after round. Rank 1 checks every byte as soon as it sees the signal.
pub(super) fn signals() -> Outcome {
    let world = World::init()?;
    let (on, peer) = (world.communicator(), 1 - world.rank());
    let places = places(&world)?;
    for data_at in 0..places.len() {
        for signal_at in 0..places.len() {
            let windows = [Window::new(&world, places[data_at], 100_000)?, Window::new(&world, places[signal_at], 8)?];
            let keys = exchange(on, &windows)?;
            let theirs = &keys[2 * peer as usize..];
            let rounds = if places[data_at].or(places[signal_at]).is_some() { 60 } else { 600 };
            for round in 1..=rounds {
                let len = [1, 64, 8192, 8193, 40_000, 100_000][round as usize % 6];
                let signal = Signal { at: theirs[1].at(0), update: SignalUpdate::Set(round) };
                if world.rank() == 0 {
                    on.put_signal(&vec![round as u8; len], theirs[0].at(0), signal)?;
                    windows[1].wait_until(0, peer, |word| word >= round)?;
                } else {
                    expect(windows[1].wait_until(0, peer, |word| word >= round)?, round)?;
                    expect_bytes("signalled data", &windows[0].bytes(len)?, &vec![round as u8; len])?;
                    on.put_signal(&[0_u8; 0], theirs[0].at(0), signal)?;
                }
            }
            on.barrier()?;
        }
    }
    Ok(())
}

/// All ranks change the same words of rank 0, from two threads each.
pub(super) fn counts() -> Outcome {
    const ROUNDS: u64 = 50;
    let world = World::init()?;
    let on = world.communicator();
    for device in places(&world)? {
        let windows = [Window::new(&world, device, 64)?];
        let keys = exchange(on, &windows)?;
        let key = &keys[0];
        let count = |thread: u64| -> Result<Vec<u64>, cableway::Error> {
            let mut seen = Vec::new();
            for round in 0..ROUNDS {
                seen.push(on.fetch_add(1_u64, key.at(0))?);
                on.fetch_add(-1_i32, key.at(12))?;
                // A lock's way to add.
                let mut expected = 0_u32;
                loop {
                    let found = on.atomic(Atomic::CompareSwap { expected, new: expected + 3 }, key.at(16))?;
                    if found == expected {
                        break;
                    }
                    expected = found;
                }
                on.atomic(Atomic::Xor(1_u64 << ((thread + 2 * round) % 64)), key.at(24))?;
                on.atomic(Atomic::Or(1_u64 << (8 * world.rank() + thread as u32)), key.at(32))?;
            }
            Ok(seen)
        };
        let mut seen = std::thread::scope(|scope| {
            let other = scope.spawn(|| count(1));
            let mut seen = count(0)?;
            seen.extend(other.join().map_err(|_| "a thread panicked")??);
            Ok::<_, Box<dyn std::error::Error>>(seen)
        })?;
        let all = 2 * ROUNDS * u64::from(on.size());
        seen.sort_unstable();
        let mut everyones = vec![0; all as usize];
        on.allgather(&seen, &mut everyones)?;
        everyones.sort_unstable();
        expect(everyones, (0..all).collect())?;
        let read = |at: Place<'_>| on.atomic(Atomic::Add(0_u64), at);
        expect(read(key.at(0))?, all)?;
        expect(on.fetch_add(0_i32, key.at(12))?, -(all as i32))?;
        expect(on.fetch_add(0_u32, key.at(8))?, 0)?;
        expect(u64::from(on.fetch_add(0_u32, key.at(16))?), 3 * all)?;
        // Each rank flips the same bits, and there is an even number of ranks.
        expect(read(key.at(24))?, 0)?;
        expect(read(key.at(32))?, (0..on.size()).fold(0, |bits, rank| bits | 3 << (8 * rank)))?;
        expect(on.atomic(Atomic::And(0x0f0f_u64), key.at(40))?, 0)?;
        on.barrier()?;
        if world.rank() == 0 {
            expect(on.atomic(Atomic::Swap(5_i64), key.at(48))?, 0)?;
            expect(windows[0].load(48)?, 5)?;
        }
        on.barrier()?;
    }
    Ok(())
}
