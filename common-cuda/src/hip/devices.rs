//! The library's description of itself and its devices.

use std::ffi::{CStr, c_char, c_int};

use super::library::HipDriver;
use crate::direct::{DirectSupport, WritesSeen};
use crate::driver::{DeviceInfo, Failure, FailureKind, Library, Limits};
use crate::facts::{DeviceFacts, Link, Vendor};
use crate::location::DeviceIndex;

/// `hipDeviceAttribute_t`. The same values in the releases 5.0 to 7: new ones were appended, and removed ones keep
/// their places.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Attribute {
    /// `hipDeviceAttributeComputeCapabilityMajor`
    Major = 23,
    /// `hipDeviceAttributeMaxPitch`
    MaxPitch = 58,
    /// `hipDeviceAttributeComputeCapabilityMinor`
    Minor = 61,
    /// `hipDeviceAttributeMultiprocessorCount`
    Multiprocessors = 63,
    /// `hipDeviceAttributeCanUseStreamWaitValue`
    StreamValues = 10013,
}

/// `hipDeviceP2PAttr`, the same values in the releases 5.0 to 7. `hipDevP2PAttrPerformanceRank` answers the kind of the
/// link and no rank, so it is not asked for.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Between {
    /// `hipDevP2PAttrAccessSupported`
    Access = 1,
    /// `hipDevP2PAttrNativeAtomicSupported`
    Atomics = 2,
}

/// Room for the properties of a device in any release.
const PROPERTIES: usize = 4096;
/// `sizeof(gcnArchName)`.
const ARCH_NAME: usize = 256;

impl HipDriver {
    fn attribute(&self, ordinal: c_int, attribute: Attribute) -> Result<c_int, Failure> {
        let mut value: c_int = 0;
        // SAFETY: fills in the value.
        unsafe { self.hipDeviceGetAttribute(&raw mut value, attribute as c_int, ordinal) }?;
        Ok(value)
    }

    /// Checks whether the current device's streams write and wait for values.
    pub(super) fn has_stream_values(&self) -> Result<bool, Failure> {
        Ok(self.attribute(self.current_ordinal()?, Attribute::StreamValues)? != 0)
    }

    /// Returns the instruction set of a device, such as `gfx942`, without its features.
    pub(super) fn architecture(&self, ordinal: c_int) -> Result<String, Failure> {
        let mut properties = [0_u64; PROPERTIES / 8];
        let place = properties.as_mut_ptr().cast();
        let call = "hipGetDeviceProperties";
        // SAFETY: fills in the release's structure, for which there is room.
        unsafe {
            match self.release.major() {
                ..6 => self.hipGetDeviceProperties(place, ordinal)?,
                6.. => self.hipGetDevicePropertiesR0600(place, ordinal)?,
            }
        }
        let offset = self.release.arch_name();
        let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = bytes.get(offset..offset + ARCH_NAME).unwrap_or_default();
        let name = CStr::from_bytes_until_nul(name).ok().and_then(|name| name.to_str().ok()).unwrap_or_default();
        let name = name.split(':').next().unwrap_or_default();
        let plain = name.starts_with("gfx") && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if plain { Ok(name.to_owned()) } else { Err(Failure::found(call, FailureKind::InvalidValue)) }
    }
}

impl DeviceInfo for HipDriver {
    fn library(&self) -> &Library {
        &self.library
    }

    fn versions(&self) -> String {
        let interface = &self.library.version;
        if self.library.simulated {
            return format!("HIP {interface} simulated");
        }
        // Releases of the kernel module that AMD packages name a version; a distribution's kernel is its own.
        let text = std::fs::read_to_string("/sys/module/amdgpu/version");
        let module = text.or_else(|_| std::fs::read_to_string("/proc/sys/kernel/osrelease"));
        format!("HIP {interface} {}", module.as_deref().unwrap_or("of an unknown module").trim())
    }

    fn device_count(&self) -> Result<u32, Failure> {
        self.count()
    }

    fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], Failure> {
        let ordinal = self.ordinal(device)?;
        let mut uuid = [0; 16];
        // SAFETY: fills in 16 bytes.
        match unsafe { self.hipDeviceGetUuid(&raw mut uuid, ordinal) } {
            Ok(()) if uuid != [0; 16] => Ok(uuid),
            // Before 5.2 the function is missing, and some devices have no serial number. Within a machine their place
            // on the bus is an identity.
            Ok(()) | Err(Failure { kind: FailureKind::Missing, .. }) => {
                let place = self.bus_id(ordinal)?;
                let mut named = *b"AMD\0\0\0\0\0\0\0\0\0\0\0\0\0";
                for (at, byte) in place.bytes().take(13).enumerate() {
                    named[3 + at] = byte;
                }
                Ok(named)
            }
            Err(failure) => Err(failure),
        }
    }

    fn device_facts(&self, index: DeviceIndex) -> Result<DeviceFacts, Failure> {
        let ordinal = self.ordinal(index)?;
        // SAFETY: the library writes at most `len` bytes, terminated.
        let name = text(|place, len| unsafe { self.hipDeviceGetName(place, len, ordinal) })?;
        let number = |which| self.attribute(ordinal, which).map(|value| u32::try_from(value).unwrap_or(0));
        let mut memory: usize = 0;
        // SAFETY: fills in the size.
        unsafe { self.hipDeviceTotalMem(&raw mut memory, ordinal) }?;
        Ok(DeviceFacts {
            vendor: Vendor::Amd,
            index,
            name,
            uuid: self.uuid(index).unwrap_or_default(),
            pci: self.bus_id(ordinal)?,
            memory: memory as u64,
            architecture: self.architecture(ordinal).unwrap_or_default(),
            compute_capability: (number(Attribute::Major)?, number(Attribute::Minor)?),
            direct: self.direct_support(index)?,
            mapped: Err(String::new()),
            stream_operations: Err(String::new()),
        })
    }

    fn link(&self, from: DeviceIndex, to: DeviceIndex) -> Link {
        let between = |attribute: Between| -> bool {
            let value = self.ordinal(from).and_then(|from| {
                let to = self.ordinal(to)?;
                let mut value: c_int = 0;
                // SAFETY: fills in the value.
                unsafe { self.hipDeviceGetP2PAttribute(&raw mut value, attribute as c_int, from, to) }?;
                Ok(value)
            });
            // Do not rely on properties of a link that the library does not report.
            value.is_ok_and(|value| value > 0)
        };
        let (peer_access, native_atomics) = (between(Between::Access), between(Between::Atomics));
        Link { from, to, peer_access, native_atomics, performance_rank: 0 }
    }

    /// The kernel module lends memory to network devices. The order in which devices see their writes is not reported.
    fn direct_support(&self, device: DeviceIndex) -> Result<DirectSupport, Failure> {
        self.ordinal(device)?;
        let dma_buf = self.exporter().is_ok();
        Ok(DirectSupport { dma_buf, peer_memory: false, writes: WritesSeen::Never })
    }

    fn limits(&self, device: DeviceIndex) -> Result<Limits, Failure> {
        let ordinal = self.ordinal(device)?;
        let multiprocessors = self.attribute(ordinal, Attribute::Multiprocessors)?;
        let pitch = self.attribute(ordinal, Attribute::MaxPitch).ok();
        let values = self.attribute(ordinal, Attribute::StreamValues);
        Ok(Limits {
            multiprocessors: u32::try_from(multiprocessors).unwrap_or(1).max(1),
            max_pitch: pitch.and_then(|pitch| usize::try_from(pitch).ok()).unwrap_or(0),
            wide_values: values.is_ok_and(|values| values != 0),
        })
    }
}

impl HipDriver {
    fn bus_id(&self, ordinal: c_int) -> Result<String, Failure> {
        // SAFETY: the library writes at most `len` bytes, terminated.
        text(|place, len| unsafe { self.hipDeviceGetPCIBusId(place, len, ordinal) })
    }
}

/// Reads a string that a function of the library writes into a buffer of the given length.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), Failure>) -> Result<String, Failure> {
    let mut bytes = [0_u8; 256];
    write(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1)?;
    Ok(CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default())
}
