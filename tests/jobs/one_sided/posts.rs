//! Posts to a target that makes no progress.

use std::time::Instant;

use cableway::World;

use super::moves::flag;
use super::{NO_DRIVER, Outcome, Window, exchange, expect, hear, tell};
use crate::support::{SOON, finish, over, role_job, transports};

const PUTS: u64 = 100_000;

/// Where each put takes system calls of both processes.
const OVER_SOCKETS: u64 = 20_000;

/// The most memory that an operation takes in its caller while it is under way, besides data that it copied.
/// docs/one-sided.md states it.
const BOUND: u64 = 2048;

pub(super) fn over_every_transport() {
    for btl in transports() {
        let options = over(&btl);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        finish(role_job(2, &options, "one_sided_outstanding").env("CABLEWAY_CUDA_LIBDIR", NO_DRIVER)).assert_success();
    }
}

/// Rank 0 starts very many puts while rank 1 makes no call of the library. No call waits, and each takes bounded memory.
pub(super) fn outstanding() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    let shared = on.transports(1 - world.rank())?.first() == Some(&"sm");
    let count = if shared { PUTS } else { OVER_SOCKETS };
    let windows = [Window::new(&world, None, 8 * count as usize)?];
    let keys = exchange(on, &windows)?;
    if world.rank() == 1 {
        // Rank 0 hears this after it is connected.
        tell(on, 0, 0_u8)?;
        let start = Instant::now();
        while !flag().exists() && start.elapsed() < SOON {
            std::thread::yield_now();
        }
        let came = flag().exists();
        let _ = std::fs::remove_file(flag());
        expect(came, true)?;
        expect(hear::<u8>(on, 0)?, 1)?;
        return (0..count).try_for_each(|at| expect(windows[0].load(8 * at)?, at + 1));
    }
    hear::<u8>(on, 1)?;
    let words: Vec<u64> = (1..=count).collect();
    on.scope(|scope| {
        let before = resident()?;
        let place = |at: usize| keys[1].at(8 * at as u64);
        let puts: Result<Vec<_>, _> =
            words.iter().enumerate().map(|(at, word)| scope.put(std::slice::from_ref(word), place(at))).collect();
        let (puts, grown) = (puts?, resident()?.saturating_sub(before));
        // The target has to take part, so they are under way.
        for put in puts.iter().step_by(count as usize / 10) {
            expect(put.is_complete(), false)?;
        }
        println!("{} bytes for each of {count} puts", grown / count);
        expect(grown <= BOUND * count, true)?;
        drop(std::fs::File::create(flag())?);
        puts.into_iter().try_for_each(|put| put.wait().map(drop))?;
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    Ok(tell(on, 1, 1_u8)?)
}

/// Returns the bytes of this process that are in memory.
fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').nth(1).ok_or("statm has another form")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
