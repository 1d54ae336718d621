//! Stream-ordered memory pools (`cuMemPool*`) that processes share.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use cudarc::driver::sys::{
    CUmemAccess_flags_enum, CUmemAccessDesc, CUmemAllocationHandleType_enum, CUmemAllocationType_enum, CUmemPoolProps,
    CUmemPoolPtrExportData, CUmemoryPool, CUpointer_attribute_enum as Attribute,
};

use super::library::CudaDriver;
use super::mapping::{self, BY_DESCRIPTOR};
use crate::direct::owned;
use crate::driver::{Failure, FailureKind, Pool, Sharing as _};
use crate::location::DeviceIndex;

pub(super) fn raw(pool: &Pool) -> CUmemoryPool {
    std::ptr::with_exposed_provenance_mut(pool.raw())
}

/// Creates a pool on a device. Its memory can be shared by descriptor.
pub(super) fn create(driver: &CudaDriver, device: DeviceIndex) -> Result<Pool, Failure> {
    let properties = CUmemPoolProps {
        allocType: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType_enum(BY_DESCRIPTOR as _),
        location: mapping::location(driver.device(device)?),
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let mut handle: CUmemoryPool = std::ptr::null_mut();
    // SAFETY: fills in a handle; the driver checks the properties.
    unsafe { driver.cuMemPoolCreate(&raw mut handle, &raw const properties) }?;
    Ok(Pool::new(handle.expose_provenance()))
}

/// Imports another process's pool for use by a device.
pub(super) fn import(driver: &CudaDriver, descriptor: BorrowedFd<'_>, user: DeviceIndex) -> Result<Pool, Failure> {
    let user = driver.device(user)?;
    let shareable: *mut c_void = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
    let mut handle: CUmemoryPool = std::ptr::null_mut();
    // SAFETY: a handle of this kind is the descriptor itself, which is open; a handle is filled in.
    unsafe { driver.cuMemPoolImportFromShareableHandle(&raw mut handle, shareable, BY_DESCRIPTOR, 0) }?;
    let pool = Pool::new(handle.expose_provenance());
    let flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = CUmemAccessDesc { location: mapping::location(user), flags };
    // SAFETY: a pool that was imported above.
    match unsafe { driver.cuMemPoolSetAccess(handle, &raw const access, 1) } {
        Ok(()) => Ok(pool),
        Err(failure) => {
            let _ = driver.destroy_pool(pool);
            Err(failure)
        }
    }
}

/// Returns the driver's handle of the pool around an address, or 0 outside of pools.
pub(super) fn of(driver: &CudaDriver, address: u64) -> Result<u64, Failure> {
    driver.pointer_attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address)
}

/// Checks whether the pool around an address was created for sharing by descriptor.
pub(super) fn is_shareable(driver: &CudaDriver, address: u64) -> bool {
    let types = driver.pointer_attribute(Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address);
    types.is_ok_and(|types| types as c_int & BY_DESCRIPTOR != 0)
}

/// Exports an allocation for a process that has imported the pool.
///
/// Drivers (580) refuse this until the pool of this handle has been exported, so a refused call exports the pool and
/// drops the descriptor.
pub(super) fn export_pointer(driver: &CudaDriver, pool: u64, address: u64) -> Result<[u8; 64], Failure> {
    let mut exported = CUmemPoolPtrExportData { reserved: [0; 64] };
    // SAFETY: fills in what is exported; any address may be asked about.
    let mut export = || unsafe { driver.cuMemPoolExportPointer(&raw mut exported, address) };
    match export() {
        Err(Failure { kind: FailureKind::InvalidValue, .. }) => {
            drop(descriptor(driver, pool)?);
            export()?;
        }
        answer => answer?,
    }
    Ok(exported.reserved)
}

/// Exports a pool as a descriptor. Memory is allocated in the pool, so its handle is valid.
pub(super) fn descriptor(driver: &CudaDriver, pool: u64) -> Result<OwnedFd, Failure> {
    let mut descriptor: c_int = -1;
    let pool: CUmemoryPool = std::ptr::with_exposed_provenance_mut(pool as usize);
    // SAFETY: a pool that exists, by the caller's knowledge; fills in a descriptor, which a handle of this kind is.
    unsafe { driver.cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, BY_DESCRIPTOR, 0) }?;
    owned(descriptor).ok_or(Failure::found("cuMemPoolExportToShareableHandle", FailureKind::Other))
}
