//! Attributes of addresses, and allocations.

use std::ffi::{c_int, c_uint};

use super::contexts::handle;
use super::library::HipDriver;
use super::mapping;
use super::table::PointerAttributes;
use crate::driver::{AMD_ALLOCATION, Allocated, Attributes, DmaBuf, Failure, FailureKind, Memory, Pool};
use crate::location::{BufferKind, DeviceIndex, MemoryClass};

/// `HIP_POINTER_ATTRIBUTE_BUFFER_ID`, the same value in the releases 5.0 to 7. The answer has 32 bits.
const BUFFER_ID: c_int = 7;

/// `hipHostMallocPortable`
const PORTABLE: c_uint = 1;
/// `hipMemAttachGlobal`
const ATTACH_GLOBAL: c_uint = 1;

/// The current device's default stream.
const DEFAULT_STREAM: usize = 0;

impl HipDriver {
    /// Returns what the library knows about an address, or `None` for host memory that it does not know: an error
    /// before 6.0, success and a type of its own since.
    fn pointer(&self, address: u64) -> Result<Option<PointerAttributes>, Failure> {
        self.count()?;
        let mut found = PointerAttributes::default();
        // SAFETY: fills in the structure; any address may be asked about.
        match unsafe { self.hipPointerGetAttributes(&raw mut found, address) } {
            Ok(()) => Ok(Some(found)),
            Err(Failure { kind: FailureKind::InvalidValue, .. }) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn class(&self, found: &PointerAttributes) -> MemoryClass {
        self.release.memory_class(found.kind, found.is_managed != 0)
    }
}

impl Memory for HipDriver {
    fn attributes(&self, address: u64) -> Result<Attributes, Failure> {
        let Some(found) = self.pointer(address)? else { return Ok(Attributes::HOST) };
        let class = self.class(&found);
        if class == MemoryClass::Host {
            return Ok(Attributes::HOST);
        }
        let device = self.index(found.device);
        let context = device.map(|_| handle(found.device));
        let buffer_id = if class == MemoryClass::Pinned { None } else { self.buffer_id(address) };
        let buffer_id = buffer_id.unwrap_or(0);
        // HIP waits in fills alone for such an allocation, so messages are ordered after the default stream.
        Ok(Attributes { class, context, device, buffer_id, synchronous: None })
    }

    fn buffer_id(&self, address: u64) -> Option<u64> {
        self.count().ok()?;
        let mut id: c_uint = 0;
        // SAFETY: fills in the id; any address may be asked about.
        unsafe { self.hipPointerGetAttribute((&raw mut id).cast(), BUFFER_ID, address) }.ok()?;
        (id != 0).then_some(AMD_ALLOCATION | u64::from(id))
    }

    fn range(&self, address: u64) -> Result<(u64, usize), Failure> {
        let (mut base, mut len) = (0, 0);
        // SAFETY: fills in the range; any address may be asked about.
        unsafe { self.hipMemGetAddressRange(&raw mut base, &raw mut len, address) }?;
        Ok((base, len))
    }

    /// The attribute for this (`HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS`) answers the flags of the allocation. So only memory
    /// of the current device counts; memory of a peer counts as its importer's.
    fn is_accessible(&self, address: u64) -> bool {
        let accessible = || {
            let (found, current) = (self.pointer(address)?, self.current_ordinal()?);
            Ok::<_, Failure>(found.is_some_and(|found| match self.class(&found) {
                MemoryClass::Device => found.device == current,
                class => class != MemoryClass::Host,
            }))
        };
        accessible().unwrap_or(false)
    }

    /// `HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS` affects only `hipMemset` (`ihipMemset` in clr, 5.7 and 6.2). So every message
    /// is ordered after the default stream instead.
    fn synchronise_operations(&self, _address: u64) -> Result<(), Failure> {
        Err(Failure::found("synchronise_operations", FailureKind::NotSupported))
    }

    fn dma_buf(&self, address: u64, len: usize) -> Result<DmaBuf, Failure> {
        self.exporter().map_err(|_| Failure::missing("hsa_amd_portable_export_dmabuf"))?.export(address, len)
    }

    fn allocate(&self, len: usize) -> Result<u64, Failure> {
        let mut address = 0;
        // SAFETY: fills in the address.
        unsafe { self.hipMalloc(&raw mut address, len) }?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.hipFree(address) }
    }

    fn granularity(&self, device: DeviceIndex) -> Result<usize, Failure> {
        mapping::granularity(self, device)
    }

    fn reserve(&self, len: usize) -> Result<u64, Failure> {
        mapping::reserve(self, len)
    }

    fn map(&self, at: u64, len: usize, on: DeviceIndex, user: DeviceIndex) -> Result<(), Failure> {
        mapping::map(self, at, len, on, user)
    }

    unsafe fn unmap(&self, address: u64, mapped: usize, reserved: usize) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { mapping::unmap(self, address, mapped, reserved) }
    }

    /// Memory of pools and of virtual memory management that is made to be shared by descriptor is not implemented.
    fn allocate_kind(
        &self,
        kind: BufferKind,
        len: usize,
        _device: DeviceIndex,
        _pool: &mut Option<Pool>,
    ) -> Result<Allocated, Failure> {
        let mut address = 0;
        let place = &raw mut address;
        // SAFETY: each fills in the address; pool memory is there once the stream has come to it.
        unsafe {
            match kind {
                BufferKind::Device => self.hipMalloc(place, len)?,
                BufferKind::Managed => self.hipMallocManaged(place, len, ATTACH_GLOBAL)?,
                BufferKind::Pinned => self.hipHostMalloc(place, len, PORTABLE)?,
                BufferKind::Pool => {
                    self.hipMallocAsync(place, len, DEFAULT_STREAM)?;
                    self.hipStreamSynchronize(DEFAULT_STREAM)?;
                }
                BufferKind::PoolShared | BufferKind::Vmm | BufferKind::VmmPrivate | BufferKind::VmmPieces => {
                    return Err(Failure::found("allocate", FailureKind::NotSupported));
                }
            }
        }
        Ok(Allocated { kind, address, mapped: len })
    }

    unsafe fn free_kind(&self, allocated: &Allocated) -> Result<(), Failure> {
        let &Allocated { kind, address, .. } = allocated;
        // SAFETY: allocated in this way and freed once, by the caller's promise.
        unsafe {
            match kind {
                BufferKind::Pinned => self.hipHostFree(address),
                BufferKind::Pool => {
                    self.hipFreeAsync(address, DEFAULT_STREAM).and_then(|()| self.hipStreamSynchronize(DEFAULT_STREAM))
                }
                _ => self.hipFree(address),
            }
        }
    }
}
