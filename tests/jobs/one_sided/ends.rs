//! Registrations that end while they are used, and targets that die.

use std::error::Error;
use std::time::Instant;

use cableway::{EngineError, Refusal, Signal, SignalUpdate, World};

use super::{Outcome, Window, exchange, expect, expect_bytes, hear, pattern, places, tell};
use crate::faults::{kill_myself, others_go_on, survived};
use crate::support::SOON;

/// Rank 1 ends the registration while a put of rank 0 is under way or about to come.
pub(super) fn dropped() -> Outcome {
    const LEN: usize = 1 << 20;
    let world = World::init()?;
    let on = world.communicator();
    for device in places(&world)? {
        for round in 0..30 {
            let windows = [Window::new(&world, device, LEN)?];
            let keys = exchange(on, &windows)?;
            let data = pattern(LEN, round);
            if world.rank() == 0 {
                let result = on.scope(|scope| {
                    let put = scope.put(&data, keys[1].at(0))?;
                    tell(on, 1, 0_u8)?;
                    put.wait()
                });
                let landed = match &result {
                    Ok(_) => 1_u8,
                    Err(error) => match error.engine_error() {
                        Some(EngineError::Refused { peer: 1, refusal: Refusal::Deregistered, .. }) => 0,
                        _ => return Err(format!("{error}").into()),
                    },
                };
                tell(on, 1, landed)?;
                continue;
            }
            if round % 2 == 0 {
                hear::<u8>(on, 0)?;
            }
            let [window] = windows;
            let bytes = |window: Window| -> Result<Vec<u8>, Box<dyn Error>> {
                let mut bytes = vec![0; LEN];
                match window {
                    Window::Host(memory) => {
                        let memory = memory.into_memory();
                        bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&memory[..]));
                    }
                    Window::Shared(memory) => {
                        let memory = memory.into_memory();
                        bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&memory[..]));
                    }
                    Window::Device(memory) => memory.into_memory().copy_to_host(0, &mut bytes)?,
                }
                Ok(bytes)
            };
            let bytes = bytes(window)?;
            if round % 2 != 0 {
                hear::<u8>(on, 0)?;
            }
            // All of it, or nothing.
            if hear::<u8>(on, 0)? == 1 {
                expect_bytes("a put that was complete", &bytes, &data)?;
            } else {
                expect_bytes("a put that was refused", &bytes, &vec![0; LEN])?;
            }
        }
    }
    Ok(on.barrier()?)
}

/// Ranks 0 and 2 put to rank 1, which dies.
pub(super) fn dies() -> Outcome {
    const LEN: usize = 32 << 20;
    let world = World::init()?;
    let on = world.communicator();
    let windows = [Window::new(&world, None, 2 * LEN)?];
    let keys = exchange(on, &windows)?;
    if world.rank() == 1 {
        // However much of their data has come.
        hear::<u8>(on, 0)?;
        hear::<u8>(on, 2)?;
        return kill_myself();
    }
    let data = pattern(LEN, world.rank());
    let mine = keys[1].at(if world.rank() == 0 { 0 } else { LEN as u64 });
    let start = Instant::now();
    let mut room = vec![0_u8; LEN];
    let mut old = 0_u64;
    on.scope(|scope| {
        let put = scope.put(&data, mine)?;
        on.fence(1)?;
        let signal = Signal { at: keys[1].at(0), update: SignalUpdate::Add(1) };
        let held = scope.put_signal(&data[..8], mine, signal)?;
        tell(on, 1, 0_u8)?;
        let get = scope.get(&mut room, mine)?;
        let word = scope.atomic(&mut old, cableway::Atomic::Add(1), keys[1].at(0))?;
        // Those that were complete before have succeeded.
        for request in [put, held, get, word] {
            about_rank_1(request.wait().map(drop), true)?;
        }
        Ok::<_, Box<dyn Error>>(())
    })?;
    // All of them may be complete before the rank dies. It sends nothing, so this receive waits for its death.
    about_rank_1(on.recv(&mut [0_u8; 1], 1, 99).map(drop), false)?;
    about_rank_1(on.put(&data[..8], mine), false)?;
    about_rank_1(on.get(&mut room, mine), false)?;
    about_rank_1(on.fetch_add(1_u32, mine).map(drop), false)?;
    on.flush(1)?;
    // It will never give this signal.
    about_rank_1(windows[0].wait_until(0, 1, |word| word == u64::MAX).map(drop), false)?;
    expect(start.elapsed() < SOON, true)?;
    let other = 2 - world.rank();
    on.put(&data[..100], keys[other as usize].at(0))?;
    others_go_on(on)?;
    expect_bytes("the survivor's data", &windows[0].bytes(100)?, &pattern(LEN, other)[..100])?;
    survived()
}

/// Rank 1 leaves the job while its memory is registered, and uses the memory afterwards.
pub(super) fn leaves() -> Outcome {
    let world = World::init()?;
    let on = world.communicator().clone();
    let windows = [Window::new(&world, None, 1 << 20)?];
    let keys = exchange(&on, &windows)?;
    let data = pattern(1 << 20, 1);
    if world.rank() == 0 {
        on.put(&data, keys[1].at(0))?;
        tell(&on, 1, 0_u8)?;
        // The others are refused, or rank 1 is gone.
        let end = Instant::now() + SOON;
        let error = loop {
            match on.put(&data[..8], keys[1].at(0)) {
                Ok(()) => expect(Instant::now() < end, true)?,
                Err(error) => break error,
            }
        };
        let left = matches!(error.engine_error(), Some(EngineError::PeerLeft { peer: 1 }));
        return if left { Ok(()) } else { Err(error.into()) };
    }
    hear::<u8>(&on, 0)?;
    drop(on);
    world.finalize();
    let [window] = windows;
    let error = window.read(0, &mut [0_u8; 8]).err().ok_or("a read after the end")?;
    expect(matches!(error.engine_error(), Some(EngineError::Finalized)), true)?;
    match window {
        Window::Host(memory) => expect_bytes("kept", zerocopy::IntoBytes::as_bytes(&memory.into_memory()[..]), &data),
        Window::Shared(memory) => expect_bytes("kept", zerocopy::IntoBytes::as_bytes(&memory.into_memory()[..]), &data),
        Window::Device(_) => Ok(()),
    }
}

/// Checks that an operation failed because rank 1 died.
fn about_rank_1(result: Result<(), cableway::Error>, may_succeed: bool) -> Outcome {
    match result {
        Ok(()) if may_succeed => Ok(()),
        Ok(()) => Err("an operation worked with a dead rank".into()),
        Err(error) => match error.engine_error() {
            Some(EngineError::PeerFailed { peer: 1, .. }) => Ok(()),
            _ => Err(format!("{error}").into()),
        },
    }
}
