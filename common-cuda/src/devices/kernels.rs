//! The decision whether kernels can do a message's work faster.

use super::Devices;
use crate::copy::EngineWork;
use crate::kernels::is_worth_a_launch;
use crate::location::{Location, MemoryClass};
use crate::memory::Spread;
use crate::platform::Platform;

impl Devices {
    /// Checks whether kernels make copies in the context of the device memory at `at` at present. This call, like any
    /// copy, loads them if the default stream is idle.
    pub fn kernels(&self, at: &Location) -> bool {
        let has_kernels = |platform: &Platform| platform.queue(at).is_ok_and(|queue| queue.workspace.has_kernels());
        at.class == MemoryClass::Device && self.platform_at(at).is_some_and(has_kernels)
    }

    /// Returns whether kernels in the context of `at` may read and write the device memory at `address`. A copy engine
    /// would refuse an invalid access; a kernel would destroy the program's context.
    pub fn kernel_reaches(&self, at: &Location, address: *const u8) -> bool {
        // A context can access its own allocations. Pools and virtual memory grant access to each device separately.
        let is_accessible = |platform: &Platform| {
            let accessible = platform.within(at, String::new, |driver| Ok(driver.is_accessible(address as u64)));
            accessible.unwrap_or(false)
        };
        at.class == MemoryClass::Device
            && self
                .platform_at(at)
                .is_some_and(|platform| platform.settings.kernels && (at.context != 0 || is_accessible(platform)))
    }

    /// Returns the address at which kernels in the context of the device memory at `at` access `len` bytes of registered
    /// host memory ([`register_host`](Self::register_host)). Returns `None` if they cannot.
    pub fn kernel_address(&self, at: &Location, host: *const u8, len: usize) -> Option<*mut u8> {
        let platform = self.platform_at(at)?;
        let queue = platform.queue(at).ok()?;
        let context = &queue.workspace.context;
        platform.registrations.settle(context);
        if !platform.registrations.holds(host as usize, len) {
            return None;
        }
        let _scope = context.enter().ok()?;
        let address = context.driver.device_address(host).ok()?;
        Some(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Returns whether a kernel packs or unpacks ([`CopyBatch::copy_packed`](crate::CopyBatch::copy_packed)) between device memory at `at` and `len`
    /// bytes of host memory at `host` faster than copy engines with this `work`, and can run now. That requires that
    /// the host memory is registered ([`register_host`](Self::register_host)), and that no kernel of Cableway waits for
    /// room on the device.
    pub fn kernel_packs(&self, at: &Location, host: *const u8, len: usize, work: EngineWork) -> bool {
        let Some((platform, settings)) = self.platform_at(at).map(|platform| (platform, platform.settings)) else {
            return false;
        };
        let costs = || platform.keeper.costs.of(at.device?);
        if !settings.kernels
            || at.class != MemoryClass::Device
            || !is_worth_a_launch(work, len, settings.pack_latency, costs())
        {
            return false;
        }
        let Ok(queue) = platform.queue(at) else { return false };
        platform.registrations.settle(&queue.workspace.context);
        platform.registrations.holds(host as usize, len) && queue.workspace.has_kernels()
    }

    /// Returns whether kernels in the context of device memory at `at` can now pack its blocks `spread` into other device
    /// memory, and unpack them: the kernels are loaded, none of them waits for room, and the device reaches the list.
    /// [`CopyBatch::copy_packed`](crate::CopyBatch::copy_packed) in a batch between devices uses them.
    pub fn packs_between(&self, at: &Location, spread: &Spread) -> bool {
        let Some(platform) = self.platform_at(at).filter(|platform| platform.settings.kernels) else { return false };
        if at.class != MemoryClass::Device {
            return false;
        }
        let Ok(queue) = platform.queue(at) else { return false };
        platform.registrations.settle(&queue.workspace.context);
        let listed = match spread {
            Spread::Regular(_) => true,
            Spread::Listed(list, _) => platform.registrations.holds(list.entries() as usize, list.bytes()),
        };
        listed && queue.workspace.has_kernels()
    }
}
