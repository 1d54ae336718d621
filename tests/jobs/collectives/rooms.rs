//! Memory of operations, on the host or on a device.

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, Elements, ElementsMut, World};

/// Memory that holds numbers.
pub(super) enum Room {
    Host(Vec<u64>),
    Device(DeviceBuffer),
}

/// Makes rooms in host memory, and on the device of this rank if there is one.
pub(super) struct Rooms<'w> {
    world: &'w World,
    device: Option<DeviceIndex>,
}

impl<'w> Rooms<'w> {
    pub(super) fn new(world: &'w World) -> Result<Self, cableway::Error> {
        if std::env::var_os("CABLEWAY_CUDA_LIBDIR").is_some_and(|folder| folder == super::NO_DRIVER) {
            return Ok(Rooms { world, device: None });
        }
        world.devices().initialise()?;
        let device = Some(DeviceIndex(world.rank() % world.devices().facts()?.devices.len() as u32));
        Ok(Rooms { world, device })
    }

    pub(super) fn device(&self) -> Option<DeviceIndex> {
        self.device
    }

    pub(super) fn room(&self, on_device: bool, values: &[u64]) -> Result<Room, cableway::Error> {
        match self.device.filter(|_| on_device && !values.is_empty()) {
            None => Ok(Room::Host(values.to_vec())),
            Some(device) => {
                let mut buffer = DeviceBuffer::new(self.world.devices(), device, BufferKind::Device, 8 * values.len())?;
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                buffer.copy_from_host(0, &bytes)?;
                Ok(Room::Device(buffer))
            }
        }
    }
}

impl Room {
    pub(super) fn view(&self) -> Result<Elements<'_, u64>, cableway::Error> {
        match self {
            Room::Host(values) => Elements::new(values),
            Room::Device(buffer) => Elements::new(buffer),
        }
    }

    pub(super) fn view_mut(&mut self) -> Result<ElementsMut<'_, u64>, cableway::Error> {
        match self {
            Room::Host(values) => ElementsMut::new(values),
            Room::Device(buffer) => ElementsMut::new(buffer),
        }
    }

    /// Writes as many values as the room has.
    pub(super) fn write(&mut self, values: &[u64]) -> Result<(), cableway::Error> {
        match self {
            Room::Host(room) => room.copy_from_slice(values),
            Room::Device(buffer) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                buffer.copy_from_host(0, &bytes)?;
            }
        }
        Ok(())
    }

    pub(super) fn values(&self) -> Result<Vec<u64>, cableway::Error> {
        match self {
            Room::Host(values) => Ok(values.clone()),
            Room::Device(buffer) => {
                let mut bytes = vec![0; buffer.len()];
                buffer.copy_to_host(0, &mut bytes)?;
                Ok(bytes
                    .chunks(8)
                    .map(|bytes| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
                    .collect())
            }
        }
    }
}
