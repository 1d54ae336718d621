//! Device memory: what an address is, allocations, and address ranges that memory is mapped into.

use std::os::fd::OwnedFd;

use super::{ContextHandle, Failure, Pool};
use crate::location::{BufferKind, DeviceIndex, MemoryClass};

/// The driver's knowledge about an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) class: MemoryClass,
    /// `None` for memory of pools and of virtual memory management, which belongs to no context.
    pub(crate) context: Option<ContextHandle>,
    pub(crate) device: Option<DeviceIndex>,
    /// 0 if unknown.
    pub(crate) buffer_id: u64,
}

impl Attributes {
    pub(crate) const HOST: Attributes =
        Attributes { class: MemoryClass::Host, context: None, device: None, buffer_id: 0 };
}

/// An allocation made for the program.
#[derive(Debug)]
pub(crate) struct Allocated {
    pub(crate) kind: BufferKind,
    pub(crate) address: u64,
    /// Bytes of address space, where memory is mapped into it.
    pub(crate) mapped: usize,
}

/// Why an allocation was not mapped for the CPU.
pub(crate) enum Refusal {
    /// This one; others may be.
    Allocation(String),
    /// All, by this mapper.
    All(String),
}

/// Maps device memory for loads and stores of the CPU.
pub(crate) trait Mapper: Send {
    fn name(&self) -> &'static str;
    /// Maps an allocation of the current context.
    fn map(&self, base: u64, len: usize) -> Result<Box<dyn View>, Refusal>;
}

/// An allocation that the CPU reaches; unmapped by dropping, with the context or after its end.
pub(crate) trait View: Send {
    /// Returns the address of its first byte.
    fn address(&self) -> *mut u8;
}

/// Questions about addresses, and allocations.
pub(crate) trait Memory {
    /// Returns the attributes of any address.
    fn attributes(&self, address: u64) -> Result<Attributes, Failure>;

    /// The id of the allocation at an address, never used again; none if the driver knows of none. Memory that is
    /// mapped anew has a new one.
    fn buffer_id(&self, address: u64) -> Option<u64>;

    /// First byte and length of the allocation, or of the mapping, around an address. The context is current.
    fn range(&self, address: u64) -> Result<(u64, usize), Failure>;

    /// Checks whether the current context's device may read and write what lies at an address.
    fn is_accessible(&self, address: u64) -> bool;

    /// Checks whether the driver lends the allocation around an address to other drivers; `None` if it does not say.
    fn direct_capable(&self, _address: u64) -> Option<bool> {
        None
    }

    /// Has synchronous calls on the allocation end before they return. The context is current.
    fn synchronise_operations(&self, _address: u64) -> Result<(), Failure> {
        Ok(())
    }

    /// Waits until every device sees what network devices have written into the current context's memory.
    fn flush_remote_writes(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// A dma-buf of whole pages. The context is current.
    fn dma_buf(&self, _address: u64, _len: usize) -> Result<OwnedFd, Failure> {
        Err(Failure::missing("dma_buf"))
    }

    /// Checks whether the CPU may map dma-bufs of a device. The error is the reason.
    fn maps_dma_bufs(&self, _device: DeviceIndex) -> Result<(), String> {
        Err("the driver maps no dma-buf".to_owned())
    }

    /// A mapper that is a kernel module of the vendor's; else why there is none.
    fn module_mapper(&'static self) -> Result<Box<dyn Mapper>, String> {
        Err("no kernel module maps device memory".to_owned())
    }

    /// Allocates in the current context.
    fn allocate(&self, len: usize) -> Result<u64, Failure>;

    /// Frees what [`allocate`](Self::allocate) or [`import_pointer`](super::Sharing::import_pointer) gave. The context
    /// is current.
    ///
    /// # Safety
    /// The memory is no longer in use.
    unsafe fn free(&self, address: u64) -> Result<(), Failure>;

    /// Allocates memory of a kind for the program, in a device's primary context, which is current. `pool` makes the
    /// pool that memory of [`BufferKind::PoolShared`] comes from.
    fn allocate_kind(
        &self,
        kind: BufferKind,
        len: usize,
        device: DeviceIndex,
        pool: &mut Option<Pool>,
    ) -> Result<Allocated, Failure>;

    /// Frees it. The same context is current.
    ///
    /// # Safety
    /// The memory is no longer in use.
    unsafe fn free_kind(&self, allocated: &Allocated) -> Result<(), Failure>;

    /// Returns the granularity of lengths for [`map`](Self::map).
    fn granularity(&self, _device: DeviceIndex) -> Result<usize, Failure> {
        Err(Failure::missing("granularity"))
    }

    /// Reserves addresses without memory.
    fn reserve(&self, _len: usize) -> Result<u64, Failure> {
        Err(Failure::missing("reserve"))
    }

    /// Makes `len` bytes of memory on a device and maps them at reserved addresses that have none, for `user`. Leaves
    /// nothing behind when it fails.
    fn map(&self, _at: u64, _len: usize, _on: DeviceIndex, _user: DeviceIndex) -> Result<(), Failure> {
        Err(Failure::missing("map"))
    }

    /// Gives back reserved addresses, of which the first `mapped` bytes have memory. Needs no current context.
    ///
    /// # Safety
    /// The memory is not in use. The addresses came from `reserve`, or `mapped` and `reserved` bytes from
    /// [`map_descriptors`](super::Sharing::map_descriptors).
    unsafe fn unmap(&self, _address: u64, _mapped: usize, _reserved: usize) -> Result<(), Failure> {
        Err(Failure::missing("unmap"))
    }
}
