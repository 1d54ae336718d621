//! Device memory of rank 0 to device memory of rank 1, without a copy in the program.
//!
//! ```text
//! cargo build --release --example device
//! target/release/cableway run -n 2 -- target/release/examples/device
//! ```

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, World};

const BYTES: usize = 1 << 20;

fn main() -> Result<(), cableway::Error> {
    let world = World::init()?;
    let everyone = world.communicator();
    world.devices().initialise()?;
    let device = DeviceIndex(world.rank() % world.devices().facts()?.devices.len() as u32);
    let mut memory = DeviceBuffer::new(world.devices(), device, BufferKind::Device, BYTES)?;

    match world.rank() {
        0 => {
            memory.copy_from_host(0, &vec![42; BYTES])?;
            everyone.send(&memory, 1, 0)?;
        }
        1 => {
            everyone.recv(&mut memory, 0, 0)?;
            let mut host = vec![0; BYTES];
            memory.copy_to_host(0, &mut host)?;
            let right = host.iter().all(|&byte| byte == 42);
            println!("received {BYTES} bytes on device {}: {}", device.0, if right { "right" } else { "wrong" });
        }
        _ => {}
    }
    Ok(())
}
