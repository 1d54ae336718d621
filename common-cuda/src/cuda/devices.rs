//! The driver's description of itself and its devices.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute_enum as Between, CUdevice_attribute_enum as Attribute};

use super::library::CudaDriver;
use super::{NUMBERS, direct};
use crate::direct::DirectSupport;
use crate::driver::{DeviceInfo, Failure, Library, Limits};
use crate::facts::{DeviceFacts, Link, Vendor};
use crate::location::DeviceIndex;

impl CudaDriver {
    /// The driver's handle of a device.
    pub(super) fn device(&self, index: DeviceIndex) -> Result<CUdevice, Failure> {
        let mut device: CUdevice = 0;
        let ordinal = NUMBERS.ordinal(index, || self.device_count())?;
        // SAFETY: fills in the handle; the driver checks the ordinal.
        unsafe { self.cuDeviceGet(&raw mut device, ordinal) }?;
        Ok(device)
    }

    pub(super) fn attribute(&self, device: CUdevice, attribute: Attribute) -> Result<c_int, Failure> {
        let mut value: c_int = 0;
        // SAFETY: fills in the value.
        unsafe { self.cuDeviceGetAttribute(&raw mut value, attribute as c_int, device) }?;
        Ok(value)
    }
}

impl DeviceInfo for CudaDriver {
    fn library(&self) -> &Library {
        &self.library
    }

    fn versions(&self) -> String {
        let interface = &self.library.version;
        if self.library.simulated {
            return format!("{interface} simulated");
        }
        let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
        let number = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let module = text.lines().next().and_then(|line| line.split_ascii_whitespace().find(number));
        format!("{interface} {}", module.unwrap_or("of an unknown module"))
    }

    fn device_count(&self) -> Result<u32, Failure> {
        let mut count: c_int = 0;
        // SAFETY: fills in the count.
        unsafe { self.cuDeviceGetCount(&raw mut count) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], Failure> {
        let device = self.device(device)?;
        let mut uuid = [0; 16];
        // SAFETY: fills in 16 bytes.
        unsafe { self.cuDeviceGetUuid(&raw mut uuid, device) }?;
        Ok(uuid)
    }

    fn device_facts(&self, index: DeviceIndex) -> Result<DeviceFacts, Failure> {
        let device = self.device(index)?;
        // SAFETY: the driver writes at most `len` bytes, terminated.
        let name = text(|place, len| unsafe { self.cuDeviceGetName(place, len, device) })?;
        // SAFETY: as above.
        let pci = text(|place, len| unsafe { self.cuDeviceGetPCIBusId(place, len, device) })?;
        let capability = |which| self.attribute(device, which).map(|value| u32::try_from(value).unwrap_or(0));
        let mut memory: usize = 0;
        // SAFETY: fills in the size.
        unsafe { self.cuDeviceTotalMem(&raw mut memory, device) }?;
        let compute_capability = (
            capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            capability(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        Ok(DeviceFacts {
            vendor: Vendor::Nvidia,
            index,
            name,
            // A driver before 11.4 has no identity that holds for MIG instances; the device is listed nevertheless.
            uuid: self.uuid(index).unwrap_or_default(),
            pci,
            memory: memory as u64,
            architecture: format!("sm_{}{}", compute_capability.0, compute_capability.1),
            compute_capability,
            direct: self.direct_support(index)?,
            mapped: Err(String::new()),
            stream_operations: Err(String::new()),
        })
    }

    fn link(&self, from: DeviceIndex, to: DeviceIndex) -> Link {
        let between = |attribute: Between| -> u32 {
            let value = self.device(from).and_then(|from| {
                let to = self.device(to)?;
                let mut value: c_int = 0;
                // SAFETY: fills in the value.
                unsafe { self.cuDeviceGetP2PAttribute(&raw mut value, attribute as c_int, from, to) }?;
                Ok(value)
            });
            // Do not rely on properties of a link that the driver does not report.
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

    fn direct_support(&self, device: DeviceIndex) -> Result<DirectSupport, Failure> {
        direct::support(self, device)
    }

    fn limits(&self, device: DeviceIndex) -> Result<Limits, Failure> {
        let device = self.device(device)?;
        let number = |which| self.attribute(device, which);
        let multiprocessors = number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let pitch = number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH).ok();
        let wide_values = number(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
        Ok(Limits {
            multiprocessors: u32::try_from(multiprocessors).unwrap_or(1).max(1),
            max_pitch: pitch.and_then(|pitch| usize::try_from(pitch).ok()).unwrap_or(0),
            wide_values: wide_values.is_ok_and(|wide| wide != 0),
        })
    }
}

/// Reads a string that a driver function writes into a buffer of the given length.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), Failure>) -> Result<String, Failure> {
    let mut bytes = [0_u8; 256];
    write(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1)?;
    Ok(CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default())
}
