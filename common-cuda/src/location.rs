//! The location of a buffer in memory.

use std::num::NonZeroU64;

/// A device of this process, as its driver numbers them. Never sent to a peer: across processes a device is identified
/// by its UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceIndex(pub u32);

/// The kind of memory, which says which processors may access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryClass {
    /// Plain host memory.
    Host,
    /// Host memory registered with, or allocated by, the driver. The CPU uses it like any other. Small buffers on the
    /// stack, in the heap's main area or in static data are classified as host memory even if they are registered.
    Pinned,
    /// Device memory. A CPU access faults.
    Device,
    /// Managed memory. It migrates on access, so Cableway copies it like device memory.
    Managed,
}

/// A classified buffer. Cheap to copy; valid while the allocation lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The class.
    pub class: MemoryClass,
    /// The device that owns the memory; `None` for host memory.
    pub device: Option<DeviceIndex>,
    /// The id of the context to use (never reused, unlike a handle). It is 0 for host memory. It is also 0 if the
    /// driver names no context (pools, VMM); then use the device's primary context.
    pub context: u64,
    /// The driver's id of the allocation, 0 if unknown. It distinguishes a new allocation from an old one at the same
    /// address.
    pub buffer_id: u64,
}

impl Location {
    /// Plain host memory.
    pub const HOST: Location = Location { class: MemoryClass::Host, device: None, context: 0, buffer_id: 0 };

    /// Checks whether only the driver may copy from and to the memory.
    #[inline]
    pub fn on_device(&self) -> bool {
        matches!(self.class, MemoryClass::Device | MemoryClass::Managed)
    }
}

/// An allocation of device memory whose location is known, by the driver's id, which is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAllocation(pub(crate) NonZeroU64);

/// The kind of a device memory allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// As `cudaMalloc`.
    Device,
    /// From the device's default stream-ordered pool, as `cudaMallocAsync`.
    Pool,
    /// From a pool on the device that Cableway creates, which other processes can import by file descriptor.
    PoolShared,
    /// Virtual memory management: an address range with mapped physical memory, created for sharing by file descriptor
    /// if the device supports that.
    Vmm,
    /// Virtual memory management, not created for sharing.
    VmmPrivate,
    /// Virtual memory management, created for sharing, with the largest number of pieces of physical memory.
    VmmPieces,
    /// Managed memory, as `cudaMallocManaged`.
    Managed,
    /// Page-locked host memory, as `cudaMallocHost`.
    Pinned,
}

impl BufferKind {
    /// Every kind.
    pub const ALL: [BufferKind; 8] = [
        Self::Device,
        Self::Pool,
        Self::PoolShared,
        Self::Vmm,
        Self::VmmPrivate,
        Self::VmmPieces,
        Self::Managed,
        Self::Pinned,
    ];
}
