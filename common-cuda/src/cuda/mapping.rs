//! Physical memory mapped into addresses reserved for it.

use std::ffi::c_int;

use cudarc::driver::sys::{
    CUdevice, CUmemAccess_flags_enum, CUmemAccessDesc, CUmemAllocationGranularity_flags_enum,
    CUmemAllocationHandleType_enum, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType_enum, CUmemLocation, CUmemLocationType_enum,
};

use super::library::CudaDriver;
use crate::driver::{Driver as _, Failure};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const BY_DESCRIPTOR: c_int =
    CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 as c_int;

/// A counted handle of physical memory, released when dropped. Mappings stay.
pub(super) struct Physical<'d> {
    driver: &'d CudaDriver,
    pub(super) handle: u64,
}

impl<'d> Physical<'d> {
    /// Takes ownership of a handle that the driver has just returned.
    pub(super) fn new(driver: &'d CudaDriver, handle: u64) -> Self {
        Physical { driver, handle }
    }

    /// Creates `len` bytes, a multiple of the [`granularity`].
    pub(super) fn create(
        driver: &'d CudaDriver,
        properties: &CUmemAllocationProp,
        len: usize,
    ) -> Result<Self, Failure> {
        let mut handle = 0;
        // SAFETY: fills in a handle; the driver checks the rest.
        unsafe { driver.cuMemCreate(&raw mut handle, len, properties, 0) }?;
        Ok(Physical::new(driver, handle))
    }

    /// Returns the properties with which the memory was created.
    pub(super) fn properties(&self) -> Result<CUmemAllocationProp, Failure> {
        let mut properties = properties(0, 0);
        // SAFETY: fills in the properties of a handle that we hold.
        unsafe { self.driver.cuMemGetAllocationPropertiesFromHandle(&raw mut properties, self.handle) }?;
        Ok(properties)
    }
}

impl Drop for Physical<'_> {
    fn drop(&mut self) {
        // SAFETY: this value owns one reference and releases it once.
        if let Err(failure) = unsafe { self.driver.cuMemRelease(self.handle) } {
            log::debug!("releasing physical memory: {}", self.driver.reason(failure));
        }
    }
}

pub(super) fn location(device: CUdevice) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Describes device memory that can be shared by the handle types in the bits.
pub(super) fn properties(device: CUdevice, handle_types: c_int) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType_enum(handle_types as _),
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Returns the granularity of the sizes of such memory.
pub(super) fn granularity(driver: &CudaDriver, properties: &CUmemAllocationProp) -> Result<usize, Failure> {
    let minimum = CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM as c_int;
    let mut granularity = 0;
    // SAFETY: fills in the granularity.
    unsafe { driver.cuMemGetAllocationGranularity(&raw mut granularity, properties, minimum) }?;
    Ok(granularity.max(1))
}

/// Reserves an address range of this many bytes.
pub(super) fn reserve(driver: &CudaDriver, len: usize) -> Result<u64, Failure> {
    let mut base = 0;
    // SAFETY: fills in an address.
    unsafe { driver.cuMemAddressReserve(&raw mut base, len, 0, 0, 0) }?;
    Ok(base)
}

/// Maps the whole memory of a handle at reserved addresses, accessible by `device`. A failure leaves no mapping.
pub(super) fn map_at(
    driver: &CudaDriver,
    device: CUdevice,
    at: u64,
    (physical, len): &(Physical<'_>, usize),
) -> Result<(), Failure> {
    // SAFETY: the driver checks that the addresses are reserved, that nothing is there, and that there is as much memory.
    unsafe { driver.cuMemMap(at, *len, 0, physical.handle, 0) }?;
    let flags = CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = CUmemAccessDesc { location: location(device), flags };
    // SAFETY: all of the range was just mapped.
    unsafe { driver.cuMemSetAccess(at, *len, &raw const access, 1) }.inspect_err(|_| {
        // SAFETY: takes back what was just mapped, which nobody has seen.
        let _ = unsafe { driver.cuMemUnmap(at, *len) };
    })
}

/// Reserves addresses and maps the handles' memory side by side, each as a whole, accessible by `device`. Returns the
/// first address. A failure leaves no mapping and no reservation.
pub(super) fn map(driver: &CudaDriver, device: CUdevice, pieces: &[(Physical<'_>, usize)]) -> Result<u64, Failure> {
    let whole = pieces.iter().map(|(_, len)| len).sum();
    let base = reserve(driver, whole)?;
    let mut mapped = 0;
    let done = pieces.iter().try_for_each(|piece| {
        map_at(driver, device, base + mapped as u64, piece)?;
        mapped += piece.1;
        Ok(())
    });
    done.map(|()| base).inspect_err(|_| {
        // SAFETY: all that was mapped there, and addresses that were just reserved; nobody has seen either.
        let _ = unsafe { unmap(driver, base, mapped, whole) };
    })
}

/// Releases addresses, of which the first `mapped` bytes have memory.
///
/// # Safety
/// `address` came from [`reserve`] for `reserved` bytes, or from [`map`]. Memory is mapped there without gaps and is
/// not in use.
pub(super) unsafe fn unmap(driver: &CudaDriver, address: u64, mapped: usize, reserved: usize) -> Result<(), Failure> {
    if mapped != 0 {
        // SAFETY: the caller's promise.
        unsafe { driver.cuMemUnmap(address, mapped) }?;
    }
    // SAFETY: as above; nothing is mapped there now.
    unsafe { driver.cuMemAddressFree(address, reserved) }
}
