//! Progress: several threads, a progress thread, and ranks that sleep while they wait.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cableway::{Communicator, World};

use super::{Outcome, expect, values};

/// Threads exchange messages with the threads of the other rank: each on its own communicator, and all on a common one
/// with their own tags.
pub(super) fn threads() -> Outcome {
    let world = World::init()?;
    let (on, me, peer) = (world.communicator(), world.rank(), 1 - world.rank());
    let own: Vec<_> = (0..4).map(|_| on.dup()).collect::<Result<_, _>>()?;
    let failures = AtomicUsize::new(0);
    let exchange = |on: &Communicator, thread: usize| -> Outcome {
        for round in 0..200 {
            let len = [1, 700, 20_000][round % 3];
            let number = 1000 * thread + round;
            let mut inbox = vec![0_u32; len];
            on.sendrecv(&values(me, number, len), (peer, thread as i32), &mut inbox, (peer, thread as i32))?;
            expect(&inbox, &values(peer, number, len))?;
        }
        Ok(())
    };
    std::thread::scope(|threads| {
        for (thread, own) in own.iter().enumerate() {
            let (exchange, failures) = (&exchange, &failures);
            for on in [own, on] {
                threads.spawn(move || {
                    if let Err(error) = exchange(on, thread) {
                        eprintln!("thread {thread}: {error}");
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
    });
    expect(failures.into_inner(), 0)?;
    Ok(on.barrier()?)
}

/// Returns the path of the file that a process writes after sending its message.
fn sent(process: u32) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("cableway-progress-{process}"))
}

pub(super) fn progress_thread() -> Outcome {
    let world = World::options()?.set("progress_thread", "yes")?.init()?;
    let on = world.communicator();
    let out = values(0, 0, 1 << 20);
    let mut name = [std::process::id()];
    if world.rank() == 0 {
        on.send(&name, 1, 1)?;
        on.barrier()?;
        on.ssend(&out, 1, 0)?;
        std::fs::write(sent(name[0]), "")?;
        on.barrier()?;
        std::fs::remove_file(sent(name[0]))?;
    } else {
        on.recv(&mut name, 0, 1)?;
        let mut inbox = vec![0_u32; out.len()];
        on.scope(|scope| {
            let coming = scope.irecv(&mut inbox, 0, 0)?;
            on.barrier()?;
            // Do not call the library until the message has been sent.
            while !sent(name[0]).exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            coming.wait()
        })?;
        expect(inbox == out, true)?;
        on.barrier()?;
    }
    Ok(())
}

/// Rank 1 waits for two seconds.
pub(super) fn sleeper() -> Outcome {
    let world = World::options()?.set("pml_sleep_after", "3000")?.init()?;
    let on = world.communicator();
    let wait = Duration::from_secs(2);
    on.barrier()?;
    if world.rank() == 0 {
        std::thread::sleep(wait);
        return Ok(on.send(&[7_u8], 1, 0)?);
    }
    let (start, before) = (Instant::now(), processor_time());
    let mut inbox = [0_u8];
    on.recv(&mut inbox, 0, 0)?;
    let (took, used) = (start.elapsed(), processor_time() - before);
    expect(inbox, [7])?;
    // Shared memory wakes no sleeping rank, so ranks that use it keep polling.
    let sleeps = std::env::var("CABLEWAY_BTL").is_ok_and(|btl| btl != "sm");
    if sleeps && used > took / 2 {
        return Err(format!("{used:?} of the processor in {took:?}").into());
    }
    Ok(())
}

/// Returns the processor time of all threads of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sends messages there and back, after pauses of random length: the peer sleeps, falls asleep, or is still awake.
pub(super) fn sleepers() -> Outcome {
    let world = World::options()?.set("pml_sleep_after", "1")?.set("pml_spin", "0")?.init()?;
    let on = world.communicator();
    let peer = 1 - world.rank();
    let mut random = world.rank() + 1;
    let mut inbox = [0_u32; 2];
    for round in 0..2000 {
        let message = [round, world.rank()];
        if world.rank() == 0 {
            on.send(&message, peer, 0)?;
        }
        on.recv(&mut inbox, peer, 0)?;
        expect(inbox, [round, peer])?;
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        for _ in 0..random >> 18 {
            std::hint::spin_loop();
        }
        if world.rank() == 1 {
            on.send(&message, peer, 0)?;
        }
    }
    Ok(())
}
