//! Device memory: attributes of addresses, allocations, and reserved address ranges.

use super::{ContextHandle, Failure, Pool};
use crate::direct::DmaBuf;
use crate::location::{BufferKind, DeviceIndex, MemoryClass};

/// The attributes of an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) class: MemoryClass,
    /// `None` for memory of pools and of virtual memory management, which belongs to no context.
    pub(crate) context: Option<ContextHandle>,
    pub(crate) device: Option<DeviceIndex>,
    /// 0 if unknown.
    pub(crate) buffer_id: u64,
    /// Whether synchronous calls on the allocation complete before they return. `None` if the driver cannot do that.
    pub(crate) synchronous: Option<bool>,
}

impl Attributes {
    pub(crate) const HOST: Attributes =
        Attributes { class: MemoryClass::Host, context: None, device: None, buffer_id: 0, synchronous: None };
}

/// An allocation for the program.
#[derive(Debug)]
pub(crate) struct Allocated {
    pub(crate) kind: BufferKind,
    pub(crate) address: u64,
    /// The size of the address range, if memory is mapped into one.
    pub(crate) mapped: usize,
}

/// Why an allocation was not mapped for the CPU.
pub(crate) enum Refusal {
    /// This allocation is refused. Others may work.
    Allocation(String),
    /// This mapper refuses all allocations.
    All(String),
}

/// Maps device memory for loads and stores by the CPU.
pub(crate) trait Mapper: Send {
    fn name(&self) -> &'static str;
    /// Maps an allocation of the current context.
    fn map(&self, base: u64, len: usize) -> Result<Box<dyn View>, Refusal>;
}

/// An allocation that the CPU can access. Dropping it unmaps it, with the context or after the context's end.
pub(crate) trait View: Send {
    /// Returns the address of its first byte.
    fn address(&self) -> *mut u8;
}

/// Queries about addresses, and allocations.
pub(crate) trait Memory {
    /// Returns the attributes of an address. Any address is allowed.
    fn attributes(&self, address: u64) -> Result<Attributes, Failure>;

    /// Returns the id of the allocation at an address, which is never reused, or `None` if the driver knows no
    /// allocation there. Memory that is mapped again has a new id.
    fn buffer_id(&self, address: u64) -> Option<u64>;

    /// Returns the first byte and length of the allocation, or of the mapping, around an address. The context is
    /// current.
    fn range(&self, address: u64) -> Result<(u64, usize), Failure>;

    /// Returns the first byte and length of the allocation at an address, whatever context is current. Returns `None` if the
    /// driver does not say.
    fn extent(&self, _address: u64) -> Option<(u64, usize)> {
        None
    }

    /// Checks whether the current context's device can read and write memory at an address.
    fn is_accessible(&self, address: u64) -> bool;

    /// Checks whether the driver lends the allocation around an address to other drivers. Returns `None` if it does not
    /// say.
    fn direct_capable(&self, _address: u64) -> Option<bool> {
        None
    }

    /// Makes synchronous calls on the allocation complete before they return. The context is current.
    fn synchronise_operations(&self, _address: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Waits until every device sees what NICs have written into the current context's memory.
    fn flush_remote_writes(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Exports whole pages as a dma-buf. The context is current.
    fn dma_buf(&self, _address: u64, _len: usize) -> Result<DmaBuf, Failure> {
        Err(Failure::missing("dma_buf"))
    }

    /// Checks whether the CPU may map dma-bufs of a device. The error is the reason.
    fn maps_dma_bufs(&self, _device: DeviceIndex) -> Result<(), String> {
        Err("the driver maps no dma-buf".to_owned())
    }

    /// Returns a mapper that uses a kernel module of the vendor. The error is the reason why there is none.
    fn module_mapper(&'static self) -> Result<Box<dyn Mapper>, String> {
        Err("no kernel module maps device memory".to_owned())
    }

    /// Allocates memory in the current context.
    fn allocate(&self, len: usize) -> Result<u64, Failure>;

    /// Frees memory of [`allocate`](Self::allocate) or [`import_pointer`](super::Sharing::import_pointer). The context
    /// is current.
    ///
    /// # Safety
    /// The memory is not in use.
    unsafe fn free(&self, address: u64) -> Result<(), Failure>;

    /// Allocates memory of a kind for the program, in a device's primary context, which is current. `pool` creates the
    /// pool of [`BufferKind::PoolShared`] memory.
    fn allocate_kind(
        &self,
        kind: BufferKind,
        len: usize,
        device: DeviceIndex,
        pool: &mut Option<Pool>,
    ) -> Result<Allocated, Failure>;

    /// Frees the memory. The same context is current.
    ///
    /// # Safety
    /// The memory is not in use.
    unsafe fn free_kind(&self, allocated: &Allocated) -> Result<(), Failure>;

    /// Returns the granularity of lengths for [`map`](Self::map).
    fn granularity(&self, _device: DeviceIndex) -> Result<usize, Failure> {
        Err(Failure::missing("granularity"))
    }

    /// Reserves addresses without memory.
    fn reserve(&self, _len: usize) -> Result<u64, Failure> {
        Err(Failure::missing("reserve"))
    }

    /// Creates `len` bytes of memory on a device and maps them at reserved, unused addresses, for access by `user`. A
    /// failure leaves nothing behind.
    fn map(&self, _at: u64, _len: usize, _on: DeviceIndex, _user: DeviceIndex) -> Result<(), Failure> {
        Err(Failure::missing("map"))
    }

    /// Releases reserved addresses, of which the first `mapped` bytes have memory. Needs no current context.
    ///
    /// # Safety
    /// The memory is not in use. The addresses came from `reserve`, or `mapped` and `reserved` bytes from
    /// [`map_descriptors`](super::Sharing::map_descriptors).
    unsafe fn unmap(&self, _address: u64, _mapped: usize, _reserved: usize) -> Result<(), Failure> {
        Err(Failure::missing("unmap"))
    }
}
