//! The decision whether kernels can do a message's work faster.

use super::Platform;
use crate::copy::EngineWork;
use crate::kernels::is_worth_a_launch;
use crate::location::{Location, MemoryClass};
use crate::memory::Spread;

impl Platform {
    /// As [`Devices::kernels`](crate::Devices::kernels).
    pub(crate) fn kernels(&self, at: &Location) -> bool {
        at.class == MemoryClass::Device && self.queue(at).is_ok_and(|queue| queue.workspace.has_kernels())
    }

    /// As [`Devices::kernel_reaches`](crate::Devices::kernel_reaches).
    pub(crate) fn kernel_reaches(&self, at: &Location, address: *const u8) -> bool {
        // A context can access its own allocations. Pools and virtual memory grant access to each device separately.
        let is_accessible = || {
            let queue = self.queue(at).ok()?;
            let context = &queue.workspace.context;
            let _scope = context.enter().ok()?;
            Some(context.driver.is_accessible(address as u64))
        };
        at.class == MemoryClass::Device
            && self.settings.kernels
            && (at.context != 0 || is_accessible().unwrap_or(false))
    }

    /// As [`Devices::kernel_packs`](crate::Devices::kernel_packs).
    pub(crate) fn kernel_packs(&self, at: &Location, host: *const u8, len: usize, work: EngineWork) -> bool {
        let settings = self.settings;
        let costs = || self.keeper.costs.of(at.device?);
        if !settings.kernels
            || at.class != MemoryClass::Device
            || !is_worth_a_launch(work, len, settings.pack_latency, costs())
        {
            return false;
        }
        let Ok(queue) = self.queue(at) else { return false };
        self.registrations.settle(&queue.workspace.context);
        self.registrations.holds(host as usize, len) && queue.workspace.has_kernels()
    }

    /// As [`Devices::packs_between`](crate::Devices::packs_between).
    pub(crate) fn packs_between(&self, at: &Location, spread: &Spread) -> bool {
        if !self.settings.kernels || at.class != MemoryClass::Device {
            return false;
        }
        let Ok(queue) = self.queue(at) else { return false };
        self.registrations.settle(&queue.workspace.context);
        let listed = match spread {
            Spread::Regular(_) => true,
            Spread::Listed(list, _) => self.registrations.holds(list.entries() as usize, list.bytes()),
        };
        listed && queue.workspace.has_kernels()
    }
}
