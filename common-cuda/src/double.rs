//! A second vendor, for tests. It shows that the code above the seam does not depend on the first vendor.
//!
//! Its device memory is host memory that faults when a CPU accesses it. Each allocation is mapped twice: without access
//! at the address that a program gets, and with access for the vendor's own copies. Copies happen as late as permitted:
//! at the second query of their event, or when their stream is synchronized. So tests detect memory that is freed too
//! early. The vendor has one device with one context. It has no kernels and exports nothing. Only the feature `double`
//! and tests build it.

mod memory;
mod streams;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use self::memory::TwinMapping;
use self::streams::Queue;
use crate::direct::{DirectSupport, WritesSeen};
use crate::driver::{
    ContextHandle, Contexts, DeviceInfo, Discovery, Driver, Entered, Failure, FailureKind, Kernels, Library, Limits,
    Numbering, Sharing,
};
use crate::error::DeviceError;
use crate::facts::{DeviceFacts, Link, Vendor};
use crate::location::DeviceIndex;

/// The one context.
const CONTEXT: u64 = 1;

/// The driver, for tests of the layers above it.
#[cfg(test)]
pub(crate) fn driver() -> &'static dyn Driver {
    Double::get()
}

/// Returns the address at which the CPU can access device memory.
#[cfg(test)]
pub(crate) fn reachable(address: u64) -> *mut u8 {
    Double::get().reachable(std::ptr::with_exposed_provenance(address as usize))
}

/// Finds the driver, which always exists.
pub(crate) struct Found;

impl Discovery for Found {
    fn name(&self) -> &'static str {
        "double"
    }

    fn expected(&self) -> &'static AtomicBool {
        static YES: AtomicBool = AtomicBool::new(true);
        &YES
    }

    fn numbers(&self) -> &'static Numbering {
        static NUMBERS: Numbering = Numbering::new();
        &NUMBERS
    }

    fn driver(&self) -> Option<&'static dyn Driver> {
        Some(Double::get())
    }

    fn initialise(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// The driver.
struct Double {
    library: Library,
    allocations: Mutex<Vec<Arc<TwinMapping>>>,
    next_id: AtomicU64,
    registered: AtomicUsize,
    queues: Mutex<Vec<(usize, Queue)>>,
    next_handle: AtomicUsize,
}

impl Double {
    fn get() -> &'static Double {
        static DOUBLE: OnceLock<Double> = OnceLock::new();
        DOUBLE.get_or_init(|| Double {
            library: Library {
                vendor: Vendor::Nvidia,
                path: "double".into(),
                version: "0".to_owned(),
                simulated: true,
            },
            allocations: Mutex::default(),
            next_id: AtomicU64::new(1),
            registered: AtomicUsize::new(0),
            queues: Mutex::default(),
            // The default stream is 1.
            next_handle: AtomicUsize::new(2),
        })
    }

    fn handle(&self) -> usize {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn check(&self, call: &'static str, device: DeviceIndex) -> Result<(), Failure> {
        if device.0 == 0 { Ok(()) } else { Err(Failure::found(call, FailureKind::NotSupported)) }
    }
}

impl Driver for Double {
    fn code_name(&self, failure: Failure) -> String {
        format!("{:?}", failure.kind)
    }
}

impl Kernels for Double {}

impl Sharing for Double {}

impl DeviceInfo for Double {
    fn library(&self) -> &Library {
        &self.library
    }

    fn versions(&self) -> String {
        "0 simulated".to_owned()
    }

    fn device_count(&self) -> Result<u32, Failure> {
        Ok(1)
    }

    fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], Failure> {
        self.check("uuid", device).map(|()| [0xdb; 16])
    }

    fn device_facts(&self, device: DeviceIndex) -> Result<DeviceFacts, Failure> {
        Ok(DeviceFacts {
            vendor: Vendor::Nvidia,
            architecture: String::new(),
            index: device,
            name: "double".to_owned(),
            uuid: self.uuid(device)?,
            pci: "0000:00:00.0".to_owned(),
            memory: 0,
            compute_capability: (0, 0),
            direct: self.direct_support(device)?,
            mapped: Err(String::new()),
            stream_operations: Err(String::new()),
        })
    }

    fn link(&self, from: DeviceIndex, to: DeviceIndex) -> Link {
        Link { from, to, peer_access: false, native_atomics: false, performance_rank: 0 }
    }

    fn direct_support(&self, device: DeviceIndex) -> Result<DirectSupport, Failure> {
        self.check("direct_support", device)?;
        Ok(DirectSupport { dma_buf: false, peer_memory: false, writes: WritesSeen::Never })
    }

    fn limits(&self, _device: DeviceIndex) -> Result<Limits, Failure> {
        Ok(Limits { multiprocessors: 1, max_pitch: 1 << 20, wide_values: false })
    }
}

impl Contexts for Double {
    fn current_context(&self) -> Result<Option<ContextHandle>, Failure> {
        Ok(Some(ContextHandle(CONTEXT as usize)))
    }

    fn current_device(&self) -> Result<DeviceIndex, Failure> {
        Ok(DeviceIndex(0))
    }

    fn context_id(&self, context: ContextHandle) -> Result<u64, Failure> {
        Ok(context.0 as u64)
    }

    fn active_primary(&self, device: DeviceIndex) -> Result<Option<ContextHandle>, Failure> {
        self.retain_primary(device).map(Some)
    }

    fn retain_primary(&self, device: DeviceIndex) -> Result<ContextHandle, Failure> {
        self.check("retain_primary", device).map(|()| ContextHandle(CONTEXT as usize))
    }

    fn release_primary(&self, _device: DeviceIndex) -> Result<(), Failure> {
        Ok(())
    }

    fn enter(&self, _context: ContextHandle) -> Result<Entered, Failure> {
        Ok(self.enter_none())
    }

    fn enter_none(&self) -> Entered {
        Entered { pushed: false, device: 0, capture_mode: None }
    }

    fn leave(&self, _entered: Entered) {}
}
