//! Sharing of allocations with other processes.
//!
//! - Memory of `cuMemAlloc` is shared by a handle that any process of the user may open.
//! - Memory of virtual memory management (`cuMemCreate`, `cuMemMap`) is shared by file descriptor. The shared object is
//!   physical memory: a mapping that outlives the owner's mapping shows old bytes, but never memory of another
//!   allocation.
//! - Memory of shareable pools: the pool is shared by file descriptor, an allocation by handle. The driver requires
//!   each importer to free an allocation before its owner frees it.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use cudarc::driver::sys::{
    CUipcMem_flags_enum, CUipcMemHandle, CUmemLocationType_enum as Place, CUmemPoolPtrExportData,
    CUpointer_attribute_enum as Attribute,
};

use super::library::CudaDriver;
use super::mapping::{self, BY_DESCRIPTOR, Physical};
use super::pool;
use crate::direct::owned;
use crate::driver::{DeviceInfo, Failure, FailureKind, Memory, Pool, Sharing};
use crate::exported::{ExportKind, Exported, PieceDescriptor};
use crate::location::DeviceIndex;

impl Sharing for CudaDriver {
    fn export(&self, device: DeviceIndex, address: u64, buffer_id: u64) -> Result<Option<Exported>, Failure> {
        // An address without attributes may belong to a pool, which has no mapping.
        let (kind, pool) = match pool::of(self, address) {
            _ if self.has_handle(address) => (ExportKind::Legacy, 0),
            Ok(0) if self.is_shareable(device, address) => (ExportKind::Descriptor, 0),
            Ok(pool @ 1..) if pool::is_shareable(self, address) => (ExportKind::Pool, pool),
            _ => return Ok(None),
        };
        let (base, len) = self.range(address)?;
        let handle = match kind {
            ExportKind::Legacy => self.handle_of(base)?,
            ExportKind::Descriptor | ExportKind::Hip => [0; 64],
            ExportKind::Pool => pool::export_pointer(self, pool, base)?,
        };
        let device = self.uuid(device)?;
        Ok(Some(Exported { kind, device, base, len: len as u64, buffer_id, handle, pool }))
    }

    fn descriptor(&self, exported: &Exported) -> Result<Option<OwnedFd>, Failure> {
        // Ids are never reused: if the id is the same after the memory was retained, that memory is the right one.
        let physical = self.physical(exported.base);
        let there = self.buffer_id(exported.base);
        if there != Some(exported.buffer_id) || self.range(exported.base)? != (exported.base, exported.len as usize) {
            return Ok(None);
        }
        let mut descriptor: c_int = -1;
        let place = (&raw mut descriptor).cast();
        // SAFETY: fills in a descriptor, which is what a handle of this kind is.
        unsafe { self.cuMemExportToShareableHandle(place, physical?.handle, BY_DESCRIPTOR, 0) }?;
        owned(descriptor).map(Some).ok_or(Failure::found("cuMemExportToShareableHandle", FailureKind::Other))
    }

    fn pool_descriptor(&self, pool: u64) -> Result<OwnedFd, Failure> {
        pool::descriptor(self, pool)
    }

    fn open_handle(&self, handle: &[u8; 64]) -> Result<u64, Failure> {
        let handle = CUipcMemHandle { reserved: handle.map(|byte| byte as _) };
        let flags = CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        let mut address = 0;
        // SAFETY: fills in the address; the driver checks the handle.
        unsafe { self.cuIpcOpenMemHandle(&raw mut address, handle, flags) }?;
        Ok(address)
    }

    unsafe fn close_handle(&self, address: u64) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.cuIpcCloseMemHandle(address) }
    }

    fn map_descriptors(&self, given: &[PieceDescriptor], user: DeviceIndex) -> Result<u64, Failure> {
        let user = self.device(user)?;
        let physical = given.iter().map(|PieceDescriptor { descriptor, len }| {
            let mut handle = 0;
            let shareable: *mut c_void = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
            // SAFETY: a handle of this kind is the descriptor itself, which is open; a handle is filled in.
            unsafe { self.cuMemImportFromShareableHandle(&raw mut handle, shareable, BY_DESCRIPTOR) }?;
            Ok((Physical::new(self, handle), *len as usize))
        });
        mapping::map(self, user, &physical.collect::<Result<Vec<_>, Failure>>()?)
    }

    fn import_pool(&self, descriptor: BorrowedFd<'_>, user: DeviceIndex) -> Result<Pool, Failure> {
        pool::import(self, descriptor, user)
    }

    fn import_pointer(&self, pool: &Pool, handle: &[u8; 64]) -> Result<u64, Failure> {
        let mut exported = CUmemPoolPtrExportData { reserved: *handle };
        let mut address = 0;
        // SAFETY: fills in an address; the driver checks what was exported.
        unsafe { self.cuMemPoolImportPointer(&raw mut address, pool::raw(pool), &raw mut exported) }?;
        Ok(address)
    }

    fn destroy_pool(&self, pool: Pool) -> Result<(), Failure> {
        // SAFETY: made or imported by us, and given away by its owner; what is allocated in it stays until it is freed.
        unsafe { self.cuMemPoolDestroy(pool::raw(&pool)) }
    }
}

impl CudaDriver {
    /// Checks whether a legacy handle is available. If the driver does not report it, requests the handle itself.
    fn has_handle(&self, address: u64) -> bool {
        self.pointer_attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) != Ok(0)
    }

    /// Returns the handle of the allocation that begins at `base`.
    fn handle_of(&self, base: u64) -> Result<[u8; 64], Failure> {
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the first byte of an allocation, whose handle is filled in.
        unsafe { self.cuIpcGetMemHandle(&raw mut handle, base) }?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// Retains the physical memory that is mapped at an address, until the result is dropped.
    fn physical(&self, address: u64) -> Result<Physical<'_>, Failure> {
        let mut handle = 0;
        let place: *mut c_void = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: fills in a handle; any address may be asked about.
        unsafe { self.cuMemRetainAllocationHandle(&raw mut handle, place) }?;
        Ok(Physical::new(self, handle))
    }

    /// Checks whether the memory mapped at an address outside of pools is device memory that was created for sharing by
    /// descriptor.
    fn is_shareable(&self, device: DeviceIndex, address: u64) -> bool {
        let made = || {
            let device = self.device(device)?;
            let made = self.physical(address)?.properties()?;
            let here = made.location.type_ == Place::CU_MEM_LOCATION_TYPE_DEVICE && made.location.id == device;
            Ok::<_, Failure>(here && made.requestedHandleTypes.0 as c_int & BY_DESCRIPTOR != 0)
        };
        made().unwrap_or(false)
    }
}
