//! GPUDirect RDMA: the NIC accesses device memory.
//!
//! There are two methods, tried in this order. With dma-buf, the GPU's driver exports a range of its memory as a
//! descriptor, which verbs register (`ibv_reg_dmabuf_mr`). With peer memory, a kernel module (`nvidia_peermem`) lets
//! verbs register GPU addresses like host addresses. A method that fails for a GPU is not tried again there, and one
//! line says so. Without any method device memory is staged through host buffers.
//!
//! # Correctness
//! - A registration belongs to an allocation, not to an address. The driver's id of the allocation is queried each
//!   time, and is never reused ([`cache`]). Memory that peers may write to is registered for one transfer.
//! - A transfer is reported as complete only after the GPUs see the written data ([`TransferMemory`]).
//! - The caller waits for the work in the default stream
//!   ([`Flags::DEVICE_DIRECT`](cableway_btl::Flags::DEVICE_DIRECT)).

mod cache;
mod facts;
mod methods;

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use cableway_base::parameters::GpuDirect as Wanted;
use cableway_btl::Region;
use cableway_common_cuda::{Allocation, DeviceIndex, Devices, DirectSupport, Location, MemoryClass, WritesSeen};
use parking_lot::Mutex;

use self::cache::{Cache, Found};
pub use self::facts::DirectFacts;
use self::methods::{RegistrationMethod, RegistrationMethods};
use crate::NAME;
use crate::settings::DirectSettings;
use crate::verbs::{Access, MemoryRegion, Protection};

/// Memory that a transfer or a peer uses. Dropping it makes the written data visible to the GPU.
pub(crate) enum TransferMemory {
    Host(Arc<MemoryRegion>),
    Device { memory: Arc<DeviceMemory>, written: bool },
}

impl TransferMemory {
    pub(crate) fn region(&self) -> &MemoryRegion {
        match self {
            TransferMemory::Host(region) => region,
            TransferMemory::Device { memory, .. } => &memory.region,
        }
    }
}

impl Drop for TransferMemory {
    fn drop(&mut self) {
        if let TransferMemory::Device { memory, written: true } = self {
            memory.see_writes();
        }
    }
}

/// Device memory that the NIC can access.
pub(crate) struct DeviceMemory {
    region: MemoryRegion,
    devices: Devices,
    location: Location,
    /// Writes become visible only after a flush.
    flush: bool,
}

impl DeviceMemory {
    fn see_writes(&self) {
        if !self.flush {
            return;
        }
        // A flush fails only with the memory's context, and then the memory is unusable.
        if let Err(error) = self.devices.flush_remote_writes(&self.location) {
            cableway_base::warn_once("openib/gpudirect/flush", || {
                format!("{NAME}: cannot flush network writes to device memory: {error}")
            });
        }
    }
}

pub(crate) struct GpuDirect {
    protection: Arc<Protection>,
    devices: Devices,
    settings: DirectSettings,
    /// The kernel module that lets verbs register device memory, or why there is none.
    peer_memory: Result<String, String>,
    state: Mutex<State>,
}

struct State {
    /// The state of each device with used memory.
    met: Vec<(DeviceIndex, DirectSupport, RegistrationMethods)>,
    cache: Cache<DeviceMemory>,
}

impl GpuDirect {
    pub(crate) fn new(protection: &Arc<Protection>, devices: &Devices, settings: &DirectSettings) -> Self {
        GpuDirect {
            protection: Arc::clone(protection),
            devices: devices.clone(),
            settings: settings.clone(),
            peer_memory: facts::peer_memory(&settings.sysfs),
            state: Mutex::new(State { met: Vec::new(), cache: Cache::new(settings.cache) }),
        }
    }

    /// Returns whether the memory of any device may be accessible, as far as is known.
    pub(crate) fn is_usable(&self) -> bool {
        if self.settings.wanted == Wanted::Off || !self.devices.expected() {
            return false;
        }
        let state = self.state.lock();
        match &state.met[..] {
            [] => self.methods(self.devices.direct_support(DeviceIndex(0)).ok().as_ref()).first().is_some(),
            met => met.iter().any(|(_, _, methods)| methods.first().is_some()),
        }
    }

    /// Describes for users how the NIC accesses device memory, or why it cannot.
    pub(crate) fn describe(&self) -> String {
        if self.settings.wanted == Wanted::Off {
            return "device memory goes through host buffers: btl_openib_gpudirect=off".to_owned();
        }
        if !self.devices.expected() {
            return "device memory goes through host buffers: this machine has no device".to_owned();
        }
        let state = self.state.lock();
        let asked = || self.methods(self.devices.direct_support(DeviceIndex(0)).ok().as_ref());
        let methods = state.met.first().map_or_else(asked, |(_, _, methods)| methods.clone());
        match methods.first() {
            Some(method) => {
                let name = match (method, &self.peer_memory) {
                    (RegistrationMethod::PeerMemory, Ok(module)) => format!("{method} ({module})"),
                    _ => method.to_string(),
                };
                format!("device memory up to {} bytes is reached by GPUDirect RDMA, by {name}", self.settings.limit)
            }
            None => format!("device memory goes through host buffers: {}", methods.reasons()),
        }
    }

    /// Returns the registration of the device memory in `region`.
    ///
    /// # Safety
    /// The memory stays allocated while work on it is under way.
    ///
    /// # Errors
    /// The reason why this memory, or all device memory, cannot be registered.
    pub(crate) unsafe fn get(&self, region: &Region, access: Access) -> Result<TransferMemory, String> {
        let (location, address) = (region.location, region.address as usize);
        let Some(device) = location.device.filter(|_| location.class == MemoryClass::Device) else {
            return Err("managed memory migrates and cannot be registered".to_owned());
        };
        let allocation =
            self.devices.allocation(&location, region.address).ok_or("the driver does not report the allocation")?;
        let wanted = address..address.checked_add(region.len).ok_or("its end exceeds the address space")?;
        if wanted.start < allocation.base || wanted.end - allocation.base > allocation.len {
            return Err("it spans several allocations".to_owned());
        }
        let mut state = self.state.lock();
        let State { met, cache } = &mut *state;
        let (support, methods) = self.meet(met, device)?;
        let written = matches!(access, Access::LocalWrite | Access::LocalWriteRemoteRead | Access::RemoteWrite);
        if written && support.writes == WritesSeen::Never {
            let reason = format!("the driver cannot make network writes visible to device {}", device.0);
            say(&reason);
            return Err(reason);
        }
        let kept = access != Access::RemoteWrite;
        if kept {
            match cache.find(&allocation, &wanted, |id, at| self.devices.is_allocated(id, at)) {
                Found::Registered(memory) => return Ok(TransferMemory::Device { memory, written }),
                Found::Refused => return Err("memory of its kind cannot be registered".to_owned()),
                Found::Nothing => {}
            }
        }
        let range = if kept { cache.room_for(&allocation, &wanted) } else { wanted.clone() };
        let memory = self.register(methods, cache, (&allocation, &location), (range, &wanted), access, support)?;
        Ok(TransferMemory::Device { memory, written })
    }

    /// Registers memory by the first method that works, and caches the registration unless peers may write to it.
    fn register(
        &self,
        methods: &mut RegistrationMethods,
        cache: &mut Cache<DeviceMemory>,
        (allocation, location): (&Allocation, &Location),
        (mut range, wanted): (Range<usize>, &Range<usize>),
        access: Access,
        support: DirectSupport,
    ) -> Result<Arc<DeviceMemory>, String> {
        let kept = access != Access::RemoteWrite;
        let access = if kept { Access::LocalWriteRemoteRead } else { access };
        loop {
            let Some(method) = methods.first() else { return Err(methods.reasons()) };
            // SAFETY: a range of the allocation, which stays by the caller's promise; what is kept is not used once the
            // driver says that the allocation is another.
            let made = unsafe { self.attempt(method, location, &range, access) };
            let error = match made {
                Ok(region) => {
                    self.synchronise(location, range.start);
                    let flush = support.writes == WritesSeen::AfterFlush;
                    let devices = self.devices.clone();
                    let memory = Arc::new(DeviceMemory { region, devices, location: *location, flush });
                    if kept {
                        cache.insert(allocation, range, &memory);
                    }
                    return Ok(memory);
                }
                Err(error) => error,
            };
            // The window into device memory is small on some devices. Cached registrations may fill it, or the
            // allocation may exceed it.
            if error.kind() == io::ErrorKind::OutOfMemory {
                if cache.clear() || range != *wanted {
                    range = wanted.clone();
                    continue;
                }
                return Err(format!("by {method}: {error}"));
            }
            if self.devices.direct_capable(std::ptr::with_exposed_provenance(range.start)) == Some(false) {
                cache.refuse(allocation);
                return Err(format!("by {method}: {error}"));
            }
            methods.refuse(method, error.to_string());
            match methods.first() {
                Some(next) => {
                    log::info!("{NAME}: device memory cannot be registered by {method} ({error}), so by {next}")
                }
                None => say(&methods.reasons()),
            }
        }
    }

    /// # Safety
    /// As [`MemoryRegion::new`].
    unsafe fn attempt(
        &self,
        method: RegistrationMethod,
        location: &Location,
        range: &Range<usize>,
        access: Access,
    ) -> io::Result<MemoryRegion> {
        match method {
            RegistrationMethod::PeerMemory => {
                let address = std::ptr::with_exposed_provenance_mut(range.start);
                // SAFETY: the caller's promise.
                unsafe { MemoryRegion::new(&self.protection, address, range.len(), access) }
            }
            RegistrationMethod::DmaBuf => {
                let page = rustix::param::page_size();
                let first = range.start & !(page - 1);
                let len = (range.end - first).next_multiple_of(page);
                // The descriptor is closed at the end of the function. The registration keeps what it needs.
                let dma_buf = self.devices.dma_buf(location, first, len).map_err(io::Error::other)?;
                let offset = dma_buf.offset + (range.start - first) as u64;
                MemoryRegion::of_dma_buf(&self.protection, dma_buf.descriptor.as_fd(), offset, range, access)
            }
        }
    }

    fn synchronise(&self, location: &Location, address: usize) {
        let address = std::ptr::with_exposed_provenance(address);
        if let Err(error) = self.devices.synchronise_operations(location, address) {
            log::debug!("{NAME}: operations of the program on registered device memory stay as they are: {error}");
        }
    }

    fn meet<'m>(
        &self,
        met: &'m mut Vec<(DeviceIndex, DirectSupport, RegistrationMethods)>,
        device: DeviceIndex,
    ) -> Result<(DirectSupport, &'m mut RegistrationMethods), String> {
        let index = match met.iter().position(|(known, ..)| *known == device) {
            Some(index) => index,
            None => {
                let support = self.devices.direct_support(device).map_err(|error| error.to_string())?;
                let methods = self.methods(Some(&support));
                match methods.first() {
                    Some(method) => log::info!("{NAME}: memory of device {} is reached by {method}", device.0),
                    None => log::info!("{NAME}: {THROUGH_HOST}: {}", methods.reasons()),
                }
                met.push((device, support, methods));
                met.len() - 1
            }
        };
        let (_, support, methods) = &mut met[index];
        Ok((*support, methods))
    }

    /// Returns the possible methods for a device with this support, or `None` if its support is unknown yet.
    fn methods(&self, support: Option<&DirectSupport>) -> RegistrationMethods {
        let wants = |method| match self.settings.wanted {
            Wanted::Auto => Ok(()),
            Wanted::DmaBuf if method == RegistrationMethod::DmaBuf => Ok(()),
            Wanted::PeerMemory if method == RegistrationMethod::PeerMemory => Ok(()),
            _ => Err("not wanted (btl_openib_gpudirect)".to_owned()),
        };
        let registers = || match self.protection.registers_dma_bufs() {
            true => Ok(()),
            false => Err("libibverbs is older than its version 34".to_owned()),
        };
        let exports = || match support {
            Some(support) if !support.dma_buf => Err("the device's driver exports none".to_owned()),
            _ => Ok(()),
        };
        let dma_buf = wants(RegistrationMethod::DmaBuf).and_then(|()| registers()).and_then(|()| exports());
        let peer_memory = wants(RegistrationMethod::PeerMemory).and_then(|()| self.peer_memory.clone().map(drop));
        RegistrationMethods::new(dma_buf, peer_memory)
    }
}

const THROUGH_HOST: &str = "device memory goes through host buffers, because GPUDirect RDMA is unavailable";

/// Warns that messages are staged, once for each reason.
fn say(reason: &str) {
    cableway_base::warn_once(&format!("openib/gpudirect/{reason}"), || format!("{NAME}: {THROUGH_HOST}: {reason}"));
}
