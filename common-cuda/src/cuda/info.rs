//! What the driver says about itself and its devices.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute_enum as Between, CUdevice_attribute_enum as Attribute};

use super::direct;
use super::driver::{Driver, version_text};
use super::mapped;
use super::status::Failure;
use crate::error::DeviceError;
use crate::facts::{DeviceFacts, Facts, Link};
use crate::location::DeviceIndex;

pub(super) fn facts(driver: &Driver) -> Result<Facts, DeviceError> {
    let mut count: c_int = 0;
    // SAFETY: fills in the count.
    unsafe { driver.cuDeviceGetCount(&raw mut count) }
        .map_err(|failure| driver.error(failure, driver.path.display().to_string()))?;
    let indices = || (0..u32::try_from(count).unwrap_or(0)).map(DeviceIndex);
    let devices = indices()
        .map(|index| device(driver, index).map_err(|failure| driver.error(failure, format!("device {}", index.0))))
        .collect::<Result<_, _>>()?;
    let links = indices()
        .flat_map(|from| indices().filter(move |&to| to != from).map(move |to| link(driver, from, to)))
        .collect();
    let version = version_text(driver.version);
    Ok(Facts { path: driver.path.clone(), version, simulated: driver.simulated, devices, links })
}

/// The driver's handle of a device.
pub(super) fn handle(driver: &Driver, index: DeviceIndex) -> Result<CUdevice, Failure> {
    let mut device: CUdevice = 0;
    let ordinal = c_int::try_from(index.0).unwrap_or(c_int::MAX);
    // SAFETY: fills in the handle; the driver checks the ordinal.
    unsafe { driver.cuDeviceGet(&raw mut device, ordinal) }?;
    Ok(device)
}

pub(super) fn uuid(driver: &Driver, index: DeviceIndex) -> Result<[u8; 16], Failure> {
    let device = handle(driver, index)?;
    let mut uuid = [0; 16];
    // SAFETY: fills in 16 bytes.
    unsafe { driver.cuDeviceGetUuid(&raw mut uuid, device) }?;
    Ok(uuid)
}

pub(super) fn attribute(driver: &Driver, device: CUdevice, attribute: Attribute) -> Result<c_int, Failure> {
    let mut value: c_int = 0;
    // SAFETY: fills in the value.
    unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute as c_int, device) }?;
    Ok(value)
}

/// The marketing name, and `domain:bus:device.function`.
pub(super) fn name_and_place(driver: &Driver, index: DeviceIndex) -> Result<(String, String), Failure> {
    let device = handle(driver, index)?;
    // SAFETY: the driver writes at most `len` bytes, terminated.
    let name = text(|place, len| unsafe { driver.cuDeviceGetName(place, len, device) })?;
    // SAFETY: as above.
    let place = text(|place, len| unsafe { driver.cuDeviceGetPCIBusId(place, len, device) })?;
    Ok((name, place))
}

fn device(driver: &Driver, index: DeviceIndex) -> Result<DeviceFacts, Failure> {
    let device = handle(driver, index)?;
    let (name, pci) = name_and_place(driver, index)?;
    let capability = |which| attribute(driver, device, which).map(|value| u32::try_from(value).unwrap_or(0));
    let mut memory: usize = 0;
    // SAFETY: fills in the size.
    unsafe { driver.cuDeviceTotalMem(&raw mut memory, device) }?;
    Ok(DeviceFacts {
        index,
        name,
        // A driver before 11.4 has no identity that holds for MIG instances; the device is listed nevertheless.
        uuid: uuid(driver, index).unwrap_or_default(),
        pci,
        memory: memory as u64,
        compute_capability: (
            capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        direct: direct::support(driver, index)?,
        mapped: mapped::describe(driver, device),
    })
}

/// A string that a function of the driver's writes into a place of the given length.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), Failure>) -> Result<String, Failure> {
    let mut bytes = [0_u8; 256];
    write(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1)?;
    Ok(CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default())
}

pub(super) fn link(driver: &Driver, from: DeviceIndex, to: DeviceIndex) -> Link {
    let between = |attribute: Between| -> u32 {
        let value = handle(driver, from).and_then(|from| {
            let to = handle(driver, to)?;
            let mut value: c_int = 0;
            // SAFETY: fills in the value.
            unsafe { driver.cuDeviceGetP2PAttribute(&raw mut value, attribute as c_int, from, to) }?;
            Ok(value)
        });
        // What the driver does not say about a link is not relied on.
        value.ok().and_then(|value| u32::try_from(value).ok()).unwrap_or(0)
    };
    Link {
        from,
        to,
        peer_access: between(Between::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED) != 0,
        native_atomics: between(Between::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) != 0,
        performance_rank: between(Between::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK),
    }
}
