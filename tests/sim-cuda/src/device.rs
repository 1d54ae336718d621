//! The driver and its devices: `cuInit`, `cuDevice*`.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUdevice_P2PAttribute, CUdevice_attribute};

use crate::abi::{Out, Text, driver_api};
use crate::driver::{AfterInit, initialise};
use crate::error::{Error, Outcome};
use crate::settings::Settings;
use crate::store::{Purpose, Store};

/// A simulated device. Its memory limit is per process, but processes can share memory as on a real device.
pub(crate) struct Device {
    /// Its number in the machine; the number in this process may differ.
    physical: usize,
    used: AtomicU64,
    store: OnceLock<Outcome<Arc<Store>>>,
}

/// Device memory in use. Dropping it releases the memory.
pub(crate) struct Charge {
    device: &'static Device,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.device.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Device {
    fn new(physical: usize) -> Self {
        Device { physical, used: AtomicU64::new(0), store: OnceLock::new() }
    }

    pub(crate) fn physical(&self) -> usize {
        self.physical
    }

    /// The UUID, which is the same in all processes.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        let mut uuid = if cfg!(sim_hip) { *b"simulated-AMD-\0\0" } else { *b"simulated-GPU-\0\0" };
        uuid[14..].copy_from_slice(&(self.physical as u16).to_be_bytes());
        uuid
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Allocates `bytes` of its memory.
    pub(crate) fn charge(&'static self, bytes: u64) -> Outcome<Charge> {
        let limit = Settings::get().memory;
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Charge { device: self, bytes }),
            Err(_) => Err(Error::OUT_OF_MEMORY),
        }
    }

    /// Returns the store of its memory, made on first use.
    pub(crate) fn store(&self) -> Outcome<Arc<Store>> {
        self.store.get_or_init(|| Store::create(Purpose::Device, self.physical)).clone()
    }

    fn pci_bus(&self) -> c_int {
        0x10 + self.physical as c_int
    }

    fn attribute(&self, attribute: c_int) -> Option<c_int> {
        use CUdevice_attribute as A;
        const fn row(attribute: CUdevice_attribute, value: c_int) -> (c_int, c_int) {
            (attribute as c_int, value)
        }
        /// The answers of an H200 for the attributes in use.
        const ROWS: &[(c_int, c_int)] = &[
            row(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
            row(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
            row(A::CU_DEVICE_ATTRIBUTE_MAX_PITCH, c_int::MAX),
            row(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4),
            row(A::CU_DEVICE_ATTRIBUTE_INTEGRATED, 0),
            row(A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
            row(A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0),
            row(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0),
            row(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0),
            row(A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3),
            row(A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
            row(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
            row(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
            row(A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
            row(A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0),
            row(A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1),
            row(A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
            row(A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
            row(A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
            row(A::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0),
            row(A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
            row(A::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
            row(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
            row(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
            row(A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
            row(A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1),
            row(A::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
        ];
        if attribute == A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID as c_int {
            return Some(self.pci_bus());
        }
        let direct = Settings::get().direct;
        let direct = [
            (A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, direct.peer_memory),
            (A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, direct.dma_buf),
            // The bit for the host.
            (A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, direct.any() && !direct.unseen),
        ];
        if let Some((_, yes)) = direct.into_iter().find(|row| row.0 as c_int == attribute) {
            return Some(yes.into());
        }
        if attribute <= 0 || attribute >= A::CU_DEVICE_ATTRIBUTE_MAX as c_int {
            return None;
        }
        Some(ROWS.iter().find(|row| row.0 == attribute).map_or(0, |row| row.1))
    }
}

static DEVICES: AfterInit<Vec<Device>> =
    AfterInit::new(|| Settings::get().visible.iter().copied().map(Device::new).collect());

/// Returns the device with this number in the process.
pub(crate) fn get(ordinal: c_int) -> Outcome<&'static Device> {
    let devices = DEVICES.get()?;
    usize::try_from(ordinal).ok().and_then(|index| devices.get(index)).ok_or(Error::INVALID_DEVICE)
}

/// Returns this process's number of the device with this number in the machine.
pub(crate) fn ordinal(physical: u64) -> Outcome<c_int> {
    let ordinal = DEVICES.get()?.iter().position(|device| device.physical as u64 == physical);
    ordinal.map(|ordinal| ordinal as c_int).ok_or(Error::INVALID_DEVICE)
}

/// Writes `text` and its terminator into `len` bytes, truncated if necessary.
fn set_text(into: Out<c_char>, len: c_int, text: &str) -> Outcome {
    let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(Error::INVALID_VALUE)?;
    into.set_bytes(text.as_bytes().iter().take(len - 1).copied().chain([0]))
}

driver_api! {
    2000 cuInit: fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        initialise()
    }

    2020 cuDriverGetVersion: fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(Settings::get().version)
    }

    2000 cuDeviceGet: fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        get(ordinal)?;
        device.set(ordinal)
    }

    2000 cuDeviceGetCount: fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(DEVICES.get()?.len() as c_int)
    }

    2000 cuDeviceGetName: fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: c_int) {
        let device = get(device)?;
        set_text(name, len, &format!("simulated device {}", device.physical))
    }

    9020 cuDeviceGetUuid: fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.set(get(device)?.uuid())
    }

    11040 cuDeviceGetUuid: fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        uuid.set(get(device)?.uuid())
    }

    3020 cuDeviceTotalMem: fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        get(device)?;
        bytes.set(Settings::get().memory as usize)
    }

    2000 cuDeviceGetAttribute: fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        let device = get(device)?;
        value.set(device.attribute(attribute).ok_or(Error::INVALID_VALUE)?)
    }

    4010 cuDeviceGetPCIBusId: fn cuDeviceGetPCIBusId(id: Out<c_char>, len: c_int, device: c_int) {
        let device = get(device)?;
        let text = format!("0000:{:02X}:00.0", device.pci_bus());
        set_text(id, len, &text)?;
        if len as usize > text.len() { Ok(()) } else { Err(Error::INVALID_VALUE) }
    }

    4010 cuDeviceGetByPCIBusId: fn cuDeviceGetByPCIBusId(device: Out<c_int>, id: Text) {
        let id = id.get()?;
        let known = |device: &Device| format!("0000:{:02x}:00.0", device.pci_bus()).ends_with(&id.to_lowercase());
        let ordinal = DEVICES.get()?.iter().position(known).ok_or(Error::INVALID_DEVICE)?;
        device.set(ordinal as c_int)
    }

    4000 cuDeviceCanAccessPeer: fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        get(device)?;
        get(peer)?;
        can.set(c_int::from(device != peer))
    }

    8000 cuDeviceGetP2PAttribute: fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, source: c_int, destination: c_int) {
        use CUdevice_P2PAttribute as A;
        get(source)?;
        get(destination)?;
        if source == destination {
            return Err(Error::INVALID_DEVICE);
        }
        const RANK: c_int = A::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK as c_int;
        const ARRAYS: c_int = A::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED as c_int;
        const ACCESS: c_int = A::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED as c_int;
        const ATOMICS: c_int = A::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED as c_int;
        value.set(match attribute {
            RANK | ARRAYS => 0,
            ACCESS | ATOMICS => 1,
            _ => return Err(Error::INVALID_VALUE),
        })
    }
}
