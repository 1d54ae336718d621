//! Measures the cost of joining a job, and of each peer: rank 0 times `World::init`, exchanges messages with every
//! other rank, and prints the growth of its resident memory. `World::init` also waits for the slowest rank to start.
//!
//! `cableway run -n 17 -- footprint`

use std::error::Error;
use std::time::Instant;

use cableway::World;

/// So few messages that no peer gets a fast box. A parameter limits the memory of fast boxes.
const MESSAGES: i32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let world = World::init()?;
    let init = began.elapsed();
    let everyone = world.communicator();
    let (rank, size) = (everyone.rank(), everyone.size());

    // The first peer causes allocations that do not depend on the number of peers.
    let mut word = [0_u64];
    let mut after_first = 0;
    for peer in 1..size {
        for tag in 0..MESSAGES {
            if rank == 0 {
                everyone.send(&word, peer, tag)?;
                everyone.recv(&mut word, peer, tag)?;
            } else if rank == peer {
                everyone.recv(&mut word, 0, tag)?;
                everyone.send(&word, 0, tag)?;
            }
        }
        if rank == 0 && peer == 1 {
            after_first = resident()?;
        }
    }
    if rank == 0 {
        println!("milliseconds of World::init: {:.3}", init.as_secs_f64() * 1e3);
        if size > 2 {
            let bytes = resident()?.saturating_sub(after_first) / u64::from(size - 2);
            println!("bytes per connected peer: {bytes}");
        }
    }
    everyone.barrier()?;
    Ok(())
}

/// Returns the resident memory of this process in bytes.
fn resident() -> Result<u64, Box<dyn Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).ok_or("/proc/self/statm has no second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
