//! Physical memory mapped into addresses reserved for it (virtual memory management, since 5.2).

use std::ffi::c_int;

use super::library::HipDriver;
use super::table::{Access, Properties};
use crate::driver::Failure;
use crate::location::DeviceIndex;

/// `hipMemAllocationGranularityMinimum`
const MINIMUM: c_int = 0;
/// `hipMemAccessFlagsProtReadWrite`
const READ_WRITE: c_int = 3;
/// `hipMemLocationTypeDevice`
const DEVICE: c_int = 1;

/// Describes device memory (`hipMemAllocationTypePinned`) that is not shared.
fn properties(ordinal: c_int) -> Properties {
    Properties { kind: 1, handle_types: 0, location: [DEVICE, ordinal], metadata: 0, flags: 0 }
}

pub(super) fn granularity(driver: &HipDriver, device: DeviceIndex) -> Result<usize, Failure> {
    let properties = properties(driver.ordinal(device)?);
    let mut granularity = 0;
    // SAFETY: fills in the granularity.
    unsafe { driver.hipMemGetAllocationGranularity(&raw mut granularity, &raw const properties, MINIMUM) }?;
    Ok(granularity.max(1))
}

pub(super) fn reserve(driver: &HipDriver, len: usize) -> Result<u64, Failure> {
    let mut base = 0;
    // SAFETY: fills in an address.
    unsafe { driver.hipMemAddressReserve(&raw mut base, len, 0, 0, 0) }?;
    Ok(base)
}

pub(super) fn map(driver: &HipDriver, at: u64, len: usize, on: DeviceIndex, user: DeviceIndex) -> Result<(), Failure> {
    let (properties, mut handle) = (properties(driver.ordinal(on)?), 0);
    let access = Access { location: [DEVICE, driver.ordinal(user)?], flags: READ_WRITE };
    // SAFETY: memory of our own, at addresses that the library checks. The mapping keeps it after the handle's release.
    unsafe {
        driver.hipMemCreate(&raw mut handle, len, &raw const properties, 0)?;
        let mapped = driver.hipMemMap(at, len, 0, handle, 0);
        let _ = driver.hipMemRelease(handle);
        mapped?;
        driver.hipMemSetAccess(at, len, &raw const access, 1).inspect_err(|_| {
            let _ = driver.hipMemUnmap(at, len);
        })
    }
}

/// # Safety
/// The first `mapped` of the reserved bytes have memory, which is not in use.
pub(super) unsafe fn unmap(driver: &HipDriver, address: u64, mapped: usize, reserved: usize) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        if mapped != 0 {
            driver.hipMemUnmap(address, mapped)?;
        }
        driver.hipMemAddressFree(address, reserved)
    }
}
