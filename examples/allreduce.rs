//! Sums numbers in the device memory of all ranks, without a copy in the program.
//!
//! ```text
//! cargo build --release --example allreduce
//! target/release/cableway run -n 4 -- target/release/examples/allreduce [ELEMENTS]
//! ```

use std::error::Error;

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, ElementsMut, ReduceOperation, World};

fn main() -> Result<(), Box<dyn Error>> {
    let elements: usize = std::env::args().nth(1).map_or(Ok(1 << 20), |text| text.parse())?;
    let world = World::init()?;
    let everyone = world.communicator();
    world.devices().initialise()?;
    let device = DeviceIndex(world.rank() % world.devices().facts()?.devices.len() as u32);

    // Every element of rank r is r + 1.
    let mut memory = DeviceBuffer::new(world.devices(), device, BufferKind::Device, 4 * elements)?;
    let mine = f32::from(everyone.rank() as u16 + 1).to_le_bytes();
    memory.copy_from_host(0, &mine.repeat(elements))?;

    let mut numbers = ElementsMut::<f32>::new(&mut memory)?;
    everyone.allreduce_in_place(&mut numbers, ReduceOperation::Sum)?;

    // The same, while the program does something else.
    let mut largest = [everyone.rank()];
    everyone.scope(|scope| {
        let request = scope.allreduce_in_place(&mut largest, ReduceOperation::Max)?;
        // Compute here.
        request.wait()
    })?;

    let mut host = vec![0; 4 * elements];
    memory.copy_to_host(0, &mut host)?;
    let size = everyone.size() as u16;
    let sum = f32::from(size) * f32::from(size + 1) / 2.0;
    let right = host.chunks(4).all(|bytes| bytes == sum.to_le_bytes()) && largest == [everyone.size() - 1];
    if !right {
        return Err(format!("rank {} has a wrong sum", everyone.rank()).into());
    }
    if everyone.rank() == 0 {
        println!("{elements} elements on {size} ranks: every sum is {sum}");
    }
    Ok(())
}
