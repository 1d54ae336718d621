//! Which threads call handlers: the progress thread, and ranks that sleep while they wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway::World;

use super::{Outcome, expect};

/// The handler of rank 1 answers while rank 1 calls nothing.
pub(super) fn progress_thread() -> Outcome {
    const ROUNDS: usize = 100;
    let world = World::options()?.set("progress_thread", "yes")?.init()?;
    let handled = Arc::new(AtomicUsize::new(0));
    let (count, rank) = (handled.clone(), world.rank());
    world.am_handler(1, move |message| {
        if rank == 1
            && let Err(error) = message.reply(1, b"", [0_u8; 0])
        {
            eprintln!("{error}");
        }
        count.fetch_add(1, Ordering::Release);
    })?;
    world.communicator().barrier()?;
    for round in 1..=ROUNDS {
        if world.rank() == 0 {
            world.post_am(1, 1, b"", [0_u8; 0])?;
        }
        while handled.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
    }
    Ok(world.communicator().barrier()?)
}

/// Messages go there and back between handlers, while the ranks wait in a way that sleeps at once.
pub(super) fn sleepers() -> Outcome {
    const ROUNDS: u32 = 1000;
    let world = World::options()?.set("pml_sleep_after", "1")?.set("pml_spin", "0")?.init()?;
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    world.am_handler(1, move |message| {
        let left = message.header().first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        if left > 0
            && let Err(error) = message.reply(1, &(left - 1).to_le_bytes(), [0_u8; 0])
        {
            eprintln!("{error}");
        }
        count.fetch_add(1, Ordering::Release);
    })?;
    world.communicator().barrier()?;
    if world.rank() == 0 {
        world.post_am(1, 1, &(ROUNDS - 1).to_le_bytes(), [0_u8; 0])?;
    }
    world.progress_until(|| handled.load(Ordering::Acquire) == ROUNDS as usize / 2);
    expect(world.am_counts().handled, u64::from(ROUNDS / 2))?;
    Ok(world.communicator().barrier()?)
}
