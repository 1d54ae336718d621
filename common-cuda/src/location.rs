//! The location of a buffer.

/// A device of this process, counted as its driver counts them. Never sent to a peer: identity across processes is
/// the device's UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceIndex(pub u32);

/// The kind of memory, and the processors that may touch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryClass {
    /// Plain host memory.
    Host,
    /// Host memory registered with, or allocated by, the driver. The CPU uses it like any other. Small buffers on the
    /// stack, in the heap's main area or in static data are told to be host memory even where they are registered.
    Pinned,
    /// Device memory: a CPU access faults.
    Device,
    /// Managed memory: migrates on access, so that we copy it as if it were device memory.
    Managed,
}

/// A classified buffer. Cheap to copy; valid while the allocation lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The class.
    pub class: MemoryClass,
    /// The device that owns the memory; none for host memory.
    pub device: Option<DeviceIndex>,
    /// The id (never reused, unlike a handle) of the context to work in; 0 for host memory, or where the driver names
    /// none (pools, VMM) and the device's primary context is to be used.
    pub context: u64,
    /// The driver's id of the allocation, 0 if unknown: tells a new allocation at an old address from the old one.
    pub buffer_id: u64,
}

impl Location {
    /// Plain host memory.
    pub const HOST: Location = Location { class: MemoryClass::Host, device: None, context: 0, buffer_id: 0 };

    /// Checks whether only the driver may copy from and to it.
    #[inline]
    pub fn on_device(&self) -> bool {
        matches!(self.class, MemoryClass::Device | MemoryClass::Managed)
    }
}

/// The kind of a device memory allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// As `cudaMalloc`.
    Device,
    /// From the device's default stream-ordered pool, as `cudaMallocAsync`.
    Pool,
    /// From a pool on the device that Cableway creates, which other processes can import by file descriptor.
    PoolShared,
    /// Virtual memory management: an address range with physical memory mapped into it, which was made to be shared with
    /// other processes by file descriptor where the device can do that.
    Vmm,
    /// The same, not made to be shared.
    VmmPrivate,
    /// The same, made to be shared, of as many pieces of physical memory as there can be.
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
