//! Passes a message around a ring of ranks that share devices, and prints the time of a step. It shows how several
//! processes share one device.
//!
//! `cableway run -n 8 -- ring [ROUNDS] [BYTES] [DEVICES]`

use std::error::Error;
use std::time::Instant;

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, World};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (rounds, bytes, devices) = (argument(1000)?, argument(8)?.max(1), argument(1)?.max(1) as u32);

    let world = World::init()?;
    world.devices().initialise()?;
    let everyone = world.communicator();
    let (rank, size) = (everyone.rank(), everyone.size());
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut buffer = DeviceBuffer::new(world.devices(), DeviceIndex(rank % devices), BufferKind::Device, bytes)?;
    buffer.fill(if rank == 0 { 1 } else { 0 })?;

    let mut pass = |rounds: usize| {
        for _ in 0..rounds {
            if rank == 0 {
                everyone.send(&buffer, next, 0)?;
                everyone.recv(&mut buffer, previous, 0)?;
            } else {
                everyone.recv(&mut buffer, previous, 0)?;
                everyone.send(&buffer, next, 0)?;
            }
        }
        Ok::<(), cableway::Error>(())
    };
    pass(rounds.div_ceil(10))?;
    everyone.barrier()?;
    let begun = Instant::now();
    pass(rounds)?;
    let taken = begun.elapsed();
    let mut last = [0];
    buffer.copy_to_host(bytes - 1, &mut last)?;
    if last[0] != 1 {
        return Err(format!("rank {rank} has {} instead of 1 at the end of its buffer", last[0]).into());
    }
    if rank == 0 {
        let step = taken.as_secs_f64() * 1e6 / (rounds.max(1) * size as usize) as f64;
        println!("{size} ranks on {devices} devices, {bytes} B: {step:.2} us a step");
    }
    Ok(())
}
