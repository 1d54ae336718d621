//! Device memory of rank 0 to device memory of rank 1, without a copy in the program.
//!
//! ```text
//! cargo build --release --example device
//! target/release/cableway run -n 2 -- target/release/examples/device
//! ```

use cableway::World;

const COUNT: usize = 1 << 20;

fn main() -> Result<(), cableway::Error> {
    let world = World::init()?;
    let everyone = world.communicator();
    world.devices().initialise()?;
    let device = world.device(world.rank() % world.devices().facts()?.devices.len() as u32)?;

    match world.rank() {
        0 => everyone.send(&device.copied(&vec![42.0_f32; COUNT])?, 1, 0)?,
        1 => {
            let mut values = device.zeroed::<f32>(COUNT)?;
            everyone.recv(&mut values, 0, 0)?;
            let right = values.to_vec()?.iter().all(|&value| value == 42.0);
            println!(
                "received {COUNT} numbers on device {}: {}",
                device.index().0,
                if right { "right" } else { "wrong" }
            );
        }
        _ => {}
    }
    Ok(())
}
