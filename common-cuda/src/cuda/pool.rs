//! Pools of memory that is allocated in stream order, as far as they are shared: `cuMemPool*`.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use cudarc::driver::sys::{
    CUdevice, CUmemAccess_flags_enum, CUmemAccessDesc, CUmemAllocationHandleType_enum, CUmemAllocationType_enum,
    CUmemPoolHandle_st, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool, CUpointer_attribute_enum as Attribute,
};

use super::context::Handle;
use super::driver::Driver;
use super::mapping::{self, BY_DESCRIPTOR};
use super::status::Failure;

/// A pool that is ours to destroy, or one of another process that we have imported.
pub(super) struct Pool {
    driver: &'static Driver,
    handle: Handle<CUmemPoolHandle_st>,
}

impl Pool {
    /// Makes one on a device, whose memory can be shared by descriptor.
    pub(super) fn create(driver: &'static Driver, device: CUdevice) -> Result<Pool, Failure> {
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType_enum(BY_DESCRIPTOR as _),
            location: mapping::location(device),
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut handle: CUmemoryPool = std::ptr::null_mut();
        // SAFETY: fills in a handle; the driver checks the properties.
        unsafe { driver.cuMemPoolCreate(&raw mut handle, &raw const properties) }?;
        Ok(Pool { driver, handle: Handle(handle) })
    }

    /// Takes another process's, to be used by `device`.
    pub(super) fn import(driver: &'static Driver, descriptor: impl AsFd, device: CUdevice) -> Result<Pool, Failure> {
        let shareable: *mut c_void = std::ptr::without_provenance_mut(descriptor.as_fd().as_raw_fd() as usize);
        let mut handle: CUmemoryPool = std::ptr::null_mut();
        // SAFETY: a handle of this kind is the descriptor itself, which is open; a handle is filled in.
        unsafe { driver.cuMemPoolImportFromShareableHandle(&raw mut handle, shareable, BY_DESCRIPTOR, 0) }?;
        let pool = Pool { driver, handle: Handle(handle) };
        let flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: mapping::location(device), flags };
        // SAFETY: a pool of ours.
        unsafe { driver.cuMemPoolSetAccess(handle, &raw const access, 1) }?;
        Ok(pool)
    }

    /// Its handle, of use as long as it lives.
    pub(super) fn handle(&self) -> CUmemoryPool {
        self.handle.0
    }

    /// The address here of an allocation in an imported pool, to be freed once.
    pub(super) fn import_pointer(&self, exported: [u8; 64]) -> Result<u64, Failure> {
        let mut exported = CUmemPoolPtrExportData { reserved: exported };
        let mut address = 0;
        // SAFETY: fills in an address; the driver checks what was exported.
        unsafe { self.driver.cuMemPoolImportPointer(&raw mut address, self.handle.0, &raw mut exported) }?;
        Ok(address)
    }
}

impl Pool {
    /// Leaves it as it is.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made or imported by us, and destroyed once; what is allocated in it stays until it is freed.
        if let Err(failure) = unsafe { self.driver.cuMemPoolDestroy(self.handle.0) } {
            log::debug!("destroying a memory pool: {}", self.driver.reason(failure));
        }
    }
}

/// The driver's handle of the pool that an address is of; 0 if it is of none.
pub(super) fn of(driver: &Driver, address: u64) -> Result<u64, Failure> {
    let mut pool: u64 = 0;
    ask(driver, Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, &mut pool, address)?;
    Ok(pool)
}

/// Whether the memory of a pool at an address was made to be shared by descriptor.
pub(super) fn is_shareable(driver: &Driver, address: u64) -> bool {
    let mut types: u64 = 0;
    let asked = ask(driver, Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, &mut types, address);
    asked.is_ok() && types as c_int & BY_DESCRIPTOR != 0
}

/// Asks for an attribute that has 8 bytes at most.
fn ask(driver: &Driver, attribute: Attribute, value: &mut u64, address: u64) -> Result<(), Failure> {
    let mut attribute = attribute as c_int;
    let mut place: *mut c_void = (&raw mut *value).cast();
    // SAFETY: one attribute and its place; any address may be asked about.
    unsafe { driver.cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address) }
}

/// What another process that has imported the pool needs to find the allocation that begins at an address.
///
/// Drivers (580) refuse that until somebody has exported the pool of this handle; who needs its descriptor asks for it
/// later.
pub(super) fn export_pointer(driver: &Driver, pool: u64, address: u64) -> Result<[u8; 64], Failure> {
    let mut exported = CUmemPoolPtrExportData { reserved: [0; 64] };
    // SAFETY: fills in what is exported; any address may be asked about.
    let mut export = || unsafe { driver.cuMemPoolExportPointer(&raw mut exported, address) };
    match export() {
        Err(Failure { code: Failure::INVALID_VALUE, .. }) => {
            drop(descriptor(driver, pool)?);
            export()?;
        }
        answer => answer?,
    }
    Ok(exported.reserved)
}

/// A descriptor of a pool in which memory is allocated now, by its handle; none if the driver gives none.
pub(super) fn descriptor(driver: &Driver, pool: u64) -> Result<Option<OwnedFd>, Failure> {
    let mut descriptor: c_int = -1;
    let pool: CUmemoryPool = std::ptr::with_exposed_provenance_mut(pool as usize);
    // SAFETY: a pool that exists, by the caller's knowledge; fills in a descriptor, which a handle of this kind is.
    unsafe { driver.cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), pool, BY_DESCRIPTOR, 0) }?;
    // SAFETY: a descriptor that the driver has just made for us, which nobody else closes.
    Ok((descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) }))
}
