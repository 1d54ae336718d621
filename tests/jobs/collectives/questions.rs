//! Collective operations ask the driver nothing that they know.

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, ReduceOperation, World};

use super::{Driver, Outcome, expect, one_shot};
use crate::driver_calls::DriverCalls;

const WARM_UP: usize = 20;
const ROUNDS: usize = 50;

pub(super) fn jobs() {
    let driver = Driver::find();
    if !driver.simulated {
        return crate::support::skip("only the simulated driver counts its calls");
    }
    one_shot::jobs("collectives_questions", &[], &[]);
}

/// Small data in host memory is exchanged without a call of the driver, by a process that uses a device.
pub(super) fn in_host_memory() -> Outcome {
    let world = World::init()?;
    let on = world.communicator();
    world.devices().initialise()?;
    let device = DeviceBuffer::new(world.devices(), DeviceIndex(0), BufferKind::Device, 64)?;
    let calls = DriverCalls::find()?;
    let operations = || -> Outcome {
        let (mut sum, mut said) = ([1.0_f64; 8], [7_u8; 16]);
        on.allreduce_in_place(&mut sum, ReduceOperation::Sum)?;
        expect(sum[7], f64::from(on.size()))?;
        on.broadcast(&mut said, 0)?;
        let (mut scanned, share) = ([0_u64; 4], [2_u64; 4]);
        on.scan(&share, &mut scanned, ReduceOperation::Sum)?;
        expect(scanned[3], 2 * (u64::from(on.rank()) + 1))
    };
    for _ in 0..WARM_UP {
        operations()?;
    }
    on.barrier()?;
    let before = calls.all();
    for _ in 0..ROUNDS {
        operations()?;
    }
    let asked = calls.all() - before;
    on.barrier()?;
    drop(device);
    expect(asked, 0)
}
