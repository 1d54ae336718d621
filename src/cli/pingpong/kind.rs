//! Kinds of memory, and the device of each rank.

use cableway::{BufferKind, DeviceIndex, Facts, World};
use clap::ValueEnum;

use crate::cli::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MemoryKind {
    /// Ordinary host memory
    Host,
    /// Host memory that the processes of a node share, so that puts and gets are stores and loads
    Shared,
    /// Page-locked host memory
    Pinned,
    /// Device memory
    Device,
    /// Device memory of the default stream-ordered pool
    Pool,
    /// Device memory of a pool that was made to be shared with other processes
    PoolShared,
    /// Device memory of the virtual memory management calls, made to be shared with other processes
    Vmm,
    /// The same, not made to be shared
    VmmPrivate,
    /// The same, made to be shared, in many small pieces
    VmmPieces,
    /// Memory that migrates between device and host
    Managed,
}

impl MemoryKind {
    /// Checks whether it is host memory, also such that a driver knows. A driver copies between two places of pinned memory
    /// while the calling thread waits for the stream.
    pub(crate) fn in_host_memory(self) -> bool {
        matches!(self, MemoryKind::Host | MemoryKind::Shared | MemoryKind::Pinned)
    }

    pub(crate) fn on_device(self) -> Option<BufferKind> {
        match self {
            MemoryKind::Host | MemoryKind::Shared => None,
            MemoryKind::Pinned => Some(BufferKind::Pinned),
            MemoryKind::Device => Some(BufferKind::Device),
            MemoryKind::Pool => Some(BufferKind::Pool),
            MemoryKind::PoolShared => Some(BufferKind::PoolShared),
            MemoryKind::Vmm => Some(BufferKind::Vmm),
            MemoryKind::VmmPrivate => Some(BufferKind::VmmPrivate),
            MemoryKind::VmmPieces => Some(BufferKind::VmmPieces),
            MemoryKind::Managed => Some(BufferKind::Managed),
        }
    }
}

/// The device of each rank; none for a rank that uses host memory.
pub(crate) struct Devices {
    pub(crate) index: [Option<DeviceIndex>; 2],
    pub(crate) simulated: bool,
}

/// Initialises the drivers, and returns what they say of the devices.
pub(crate) fn facts(world: &World) -> Result<Facts, Failure> {
    let failed = |error| Failure::failed(1, format!("cannot use device memory: {error}"));
    world.devices().initialise().map_err(failed)?;
    world.devices().facts().map_err(failed)
}

/// Chooses the devices. `wanted` names those of rank 0 and rank 1. By default rank 1 uses the second device if there is one.
pub(crate) fn devices(world: &World, kinds: [MemoryKind; 2], wanted: [Option<u32>; 2]) -> Result<Devices, Failure> {
    if kinds.iter().all(|kind| kind.on_device().is_none()) {
        return Ok(Devices { index: [None; 2], simulated: false });
    }
    let facts = facts(world)?;
    let count = facts.devices.len();
    let mut index = [None; 2];
    for (rank, kind) in kinds.into_iter().enumerate() {
        if kind.on_device().is_none() {
            continue;
        }
        let number = wanted[rank].unwrap_or(if count > 1 { rank as u32 } else { 0 });
        if number as usize >= count {
            return Err(Failure::usage(format!(
                "there is no device {number}: this machine has {count} devices, numbered from 0"
            )));
        }
        index[rank] = Some(DeviceIndex(number));
    }
    Ok(Devices { index, simulated: facts.simulated() })
}
