//! Sends each message from newly allocated memory and frees it at once, which caches of handles must handle. The device
//! memory in use must stay constant; `nvidia-smi` shows it.
//!
//! `cableway run -n 2 -- fresh_allocations [SENDS] [BYTES]`

use std::error::Error;

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, World};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: usize| arguments.next().map_or(Ok(default), |text| text.parse());
    let (sends, bytes) = (argument(100_000)?, argument(1 << 20)?);

    let world = World::init()?;
    world.devices().initialise()?;
    let devices = world.devices().facts()?.devices.len() as u32;
    let device = DeviceIndex(world.rank() % devices);
    let everyone = world.communicator();
    for number in 0..sends {
        // Alternate two lengths, so that addresses are reused within other allocations.
        let len = bytes >> (number % 2);
        let mut buffer = DeviceBuffer::new(world.devices(), device, BufferKind::Device, len)?;
        if world.rank() == 0 {
            buffer.fill(number as u8)?;
            everyone.send(&buffer, 1, 0)?;
        } else {
            everyone.recv(&mut buffer, 0, 0)?;
            let mut last = [0];
            buffer.copy_to_host(len - 1, &mut last)?;
            if last[0] != number as u8 {
                return Err(format!("message {number} ends with {} instead of {}", last[0], number as u8).into());
            }
        }
    }
    Ok(())
}
