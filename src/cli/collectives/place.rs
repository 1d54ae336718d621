//! Memory of the host or of a device.

use cableway::{Device, DeviceVec, RecvBuffer, RecvElements, SendBuffer, SendElements, World};
use clap::ValueEnum;

use crate::cli::Failure;
use crate::cli::pingpong::kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Place {
    /// Ordinary host memory
    Host,
    /// Device memory
    Device,
}

/// Returns this rank's device.
pub(super) fn device(world: &World) -> Result<Device<'_>, Failure> {
    let count = kind::facts(world)?.devices.len() as u32;
    Ok(world.device(world.rank() % count.max(1))?)
}

/// Floats in one place.
pub(super) trait Floats: SendBuffer + RecvBuffer + SendElements<Item = f32> + RecvElements<Item = f32> {
    fn write(&mut self, values: &[f32]) -> Result<(), Failure>;
    fn read(&self) -> Result<Vec<f32>, Failure>;
}

impl Floats for Vec<f32> {
    fn write(&mut self, values: &[f32]) -> Result<(), Failure> {
        self.copy_from_slice(values);
        Ok(())
    }

    fn read(&self) -> Result<Vec<f32>, Failure> {
        Ok(self.clone())
    }
}

impl Floats for DeviceVec<f32> {
    fn write(&mut self, values: &[f32]) -> Result<(), Failure> {
        Ok(self.copy_from_host(0, values)?)
    }

    fn read(&self) -> Result<Vec<f32>, Failure> {
        Ok(self.to_vec()?)
    }
}
