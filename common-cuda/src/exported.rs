//! Descriptions of allocations for other processes.

use std::os::fd::OwnedFd;

use crate::error::DeviceError;
use crate::facts::Vendor;

/// How an allocation is passed to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExportKind {
    /// By a handle that any process of the user may open, as for `cudaMalloc` memory.
    Legacy = 1,
    /// By file descriptors that the owner sends on request, as for `cuMemCreate` memory that was created for sharing.
    /// There is one descriptor, or one for each piece of a run.
    Descriptor = 2,
    /// For memory of a shareable pool: the pool by a file descriptor that the owner sends on request, the allocation by
    /// a handle.
    Pool = 3,
    /// By a handle of the other vendor, as for `hipMalloc` memory. No driver opens a handle of another vendor's.
    Hip = 4,
}

impl ExportKind {
    /// Returns the kind of this number; `None` if there is none.
    pub fn from_number(number: u8) -> Option<ExportKind> {
        const ALL: [ExportKind; 4] = [ExportKind::Legacy, ExportKind::Descriptor, ExportKind::Pool, ExportKind::Hip];
        ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Returns the vendor whose driver opens it.
    pub fn vendor(self) -> Vendor {
        match self {
            ExportKind::Legacy | ExportKind::Descriptor | ExportKind::Pool => Vendor::Nvidia,
            ExportKind::Hip => Vendor::Amd,
        }
    }

    /// Checks whether its owner sends descriptors on request.
    pub(crate) fn needs_descriptors(self) -> bool {
        matches!(self, ExportKind::Descriptor | ExportKind::Pool)
    }
}

/// The description of an allocation for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// How it is passed.
    pub kind: ExportKind,
    /// The UUID of its device, or of the MIG instance.
    pub device: [u8; 16],
    /// The address of its first byte in the owner's process. It serves only as the base of offsets.
    pub base: u64,
    /// The length in bytes.
    pub len: u64,
    /// The driver's id of it in the owner's process, or the number of a run. Never 0 and never reused.
    pub buffer_id: u64,
    /// The driver's handle. It is zero for memory that is passed by descriptor.
    pub handle: [u8; 64],
    /// The number of its pool, below 2^48; 0 outside pools.
    pub pool: u64,
}

impl Exported {
    /// Returns the object that the owner exports and that stays mapped: the allocation, or its pool.
    pub(crate) fn whole(&self) -> Exported {
        match self.kind {
            ExportKind::Legacy | ExportKind::Descriptor | ExportKind::Hip => *self,
            ExportKind::Pool => Exported { base: 0, len: 0, buffer_id: POOL | self.pool, handle: [0; 64], ..*self },
        }
    }
}

/// This bit marks the number of a pool in the field of an id.
pub(crate) const POOL: u64 = 1 << 62;

/// Physical memory that its owner shares.
#[derive(Debug)]
pub struct PieceDescriptor {
    /// The descriptor of the memory.
    pub descriptor: OwnedFd,
    /// The number of its mapped bytes.
    pub len: u64,
}

/// Why an allocation has no export.
#[derive(Debug)]
pub(crate) enum NoExport {
    /// Memory of this kind is shared in another way, or not at all.
    Kind,
    /// The driver refused.
    Refused(DeviceError),
}
