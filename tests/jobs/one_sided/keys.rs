//! Keys that are forged, stale or of another rank, and very many of them.

use cableway::{EngineError, RawMemory, Refusal, RemoteKey, Signal, SignalUpdate, World};
use zerocopy::IntoBytes;

use super::{Outcome, Window, exchange, expect, expect_bytes, hear, pattern, places, tell};

/// Offsets of a key's fields: docs/wire.md draws them.
const LEN: usize = 8;
const RANK: usize = 16;
const SLOT: usize = 40;
const GENERATION: usize = 44;
const AUTHENTICATOR: usize = 48;

/// Returns the key with other bytes at an offset.
fn forged(key: &RemoteKey, at: usize, bytes: &[u8]) -> RemoteKey {
    let mut key = *key;
    key.as_mut_bytes()[at..at + bytes.len()].copy_from_slice(bytes);
    key
}

fn refused(result: Result<(), cableway::Error>, by: u32, because: Refusal) -> Outcome {
    let error = result.err().ok_or("the access was not refused")?;
    match error.engine_error() {
        Some(EngineError::Refused { peer, refusal, .. }) if (*peer, *refusal) == (by, because) => Ok(()),
        _ => Err(format!("{error} instead of {because:?} by rank {by}").into()),
    }
}

/// Ranks 0 and 2 try wrong keys on the memory of rank 1, which must not change.
pub(super) fn keys() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    for device in places(&world)? {
        let windows = [Window::new(&world, device, 4096)?, Window::new(&world, device, 100_000)?];
        let keys = exchange(on, &windows)?;
        let (small, large) = (&keys[2], &keys[3]);
        if world.rank() == 1 {
            on.barrier()?;
            expect_bytes("small", &windows[0].bytes(4096)?, &[0; 4096])?;
            expect_bytes("large", &windows[1].bytes(100_000)?, &[0; 100_000])?;
            // Now the keys are stale.
            let reused = (windows[0].len(), windows.map(drop), Window::new(&world, device, 4096)?).2;
            on.barrier()?;
            on.barrier()?;
            expect_bytes("the next one", &reused.bytes(4096)?, &[0; 4096])?;
            continue;
        }
        let all = u64::MAX.to_le_bytes();
        let flipped = |at: usize| forged(small, at, &[!small.as_bytes()[at]]);
        for len in [1, 8, 8193, 65_536] {
            let (data, mut room) = (pattern(len, 1), vec![9_u8; len]);
            let unknown = [
                flipped(AUTHENTICATOR),
                flipped(AUTHENTICATOR + 15),
                forged(small, GENERATION, &[99]),
                forged(small, SLOT, &[99]),
                forged(small, SLOT, &large.as_bytes()[SLOT..SLOT + 4]),
                forged(small, SLOT, &[0; 24]),
            ];
            for key in unknown.map(|key| forged(&key, LEN, &all)) {
                refused(on.put(&data, key.at(0)), 1, Refusal::UnknownKey)?;
                refused(on.get(&mut room, key.at(0)), 1, Refusal::UnknownKey)?;
                refused(on.fetch_add(1_u32, key.at(0)).map(drop), 1, Refusal::UnknownKey)?;
            }
            // The same key, of another rank.
            let other = 2 - world.rank();
            let elsewhere = forged(&forged(small, RANK, &other.to_le_bytes()), LEN, &all);
            refused(on.put(&data, elsewhere.at(0)), other, Refusal::UnknownKey)?;
            // More memory than there is.
            let longer = forged(small, LEN, &all);
            for offset in [4096, 4095 + 8, u64::MAX - len as u64] {
                refused(on.put(&data, longer.at(offset)), 1, Refusal::OutOfRange)?;
                refused(on.get(&mut room, longer.at(offset)), 1, Refusal::OutOfRange)?;
            }
            // The data is not written if its signal is refused.
            let signal = Signal { at: longer.at(4096), update: SignalUpdate::Set(1) };
            refused(on.put_signal(&data, large.at(0), signal), 1, Refusal::OutOfRange)?;
            refused(on.get_signal(&mut vec![0_u8; len], large.at(0), signal), 1, Refusal::OutOfRange)?;
            // A good signal is not given if the data is refused.
            let good = Signal { at: large.at(0), ..signal };
            refused(on.get_signal(&mut room, longer.at(4096), good), 1, Refusal::OutOfRange)?;
            expect(room.iter().all(|&byte| byte == 9), true)?;
            // What the caller can know is not sent.
            let error =
                on.put(&data, small.at(4096_u64.saturating_sub(len as u64 / 2))).err().ok_or("a put out of range")?;
            expect(matches!(error.engine_error(), Some(EngineError::OutsideRegistration { .. })), true)?;
        }
        let text = on.put(&[1], forged(small, RANK, &[77]).at(0)).err().ok_or("a put to rank 77")?.to_string();
        expect(text, "put of 4 bytes to rank 77: invalid rank 77: there are 3 ranks".to_owned())?;
        on.barrier()?;
        on.barrier()?;
        for len in [1, 8193] {
            refused(on.put(&pattern(len, 3), large.at(0)), 1, Refusal::Deregistered)?;
            refused(on.put(&pattern(len, 3)[..1], small.at(0)), 1, Refusal::Deregistered)?;
            refused(on.get(&mut vec![0_u8; len], large.at(0)), 1, Refusal::Deregistered)?;
        }
        on.barrier()?;
    }
    Ok(())
}

/// Rank 1 registers one buffer 10,000 times, and ends the registrations in reverse order.
pub(super) fn many() -> Outcome {
    const MANY: usize = 10_000;
    let world = World::init()?;
    let on = world.communicator();
    if world.rank() == 0 {
        for _ in places(&world)? {
            let (keys, _) = on.recv_vec::<RemoteKey>(1, 0)?;
            expect(keys.len(), MANY)?;
            let put = |number: usize| on.put(&[number as u32], keys[number].at(4 * (number as u64 % 100)));
            loop {
                // So many are left.
                let left = hear::<u64>(on, 1)? as usize;
                if left < MANY {
                    refused(put(left), 1, Refusal::Deregistered)?;
                    refused(put(MANY - 1), 1, Refusal::Deregistered)?;
                }
                if left == 0 {
                    break;
                }
                put(left - 1)?;
                tell(on, 1, 0_u64)?;
            }
        }
        return Ok(on.barrier()?);
    }
    for device in places(&world)? {
        let window = Window::new(&world, device, 400)?;
        // SAFETY: the window keeps the memory for longer, and only peers write it.
        let memory = unsafe { RawMemory::new(window.key().base() as *mut _, 400) };
        let mut registrations = (0..MANY).map(|_| world.register(memory)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<RemoteKey> = registrations.iter().map(|registration| *registration.key()).collect();
        on.send(&keys, 0, 0)?;
        while !registrations.is_empty() {
            let last = registrations.len() - 1;
            if last == MANY - 1 || last % 997 == 0 {
                tell(on, 0, last as u64 + 1)?;
                hear::<u64>(on, 0)?;
                let at = 4 * (last % 100);
                expect_bytes("the last one", &window.bytes(400)?[at..at + 4], &(last as u32).to_le_bytes())?;
            }
            registrations.pop();
        }
        tell(on, 0, 0_u64)?;
    }
    Ok(on.barrier()?)
}
