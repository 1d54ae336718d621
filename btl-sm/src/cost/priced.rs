//! The costs by which a link to one peer decides. They follow the known facts about devices.

use std::sync::Arc;

use cableway_common_cuda::{Costs, DeviceIndex};

use super::{DeviceCosts, Estimates, PeerDevice};

/// The costs of messages between the last used devices of both sides.
pub(crate) struct Priced {
    known: Arc<Costs>,
    /// The version of the costs when these were computed.
    version: usize,
    device: Option<DeviceIndex>,
    other: PeerDevice,
    costs: DeviceCosts,
}

impl Priced {
    pub(crate) fn new(known: Arc<Costs>, estimates: &Estimates) -> Self {
        let version = known.version();
        let costs = estimates.costs(known.of_any(), PeerDevice::Unknown);
        Priced { known, version, device: None, other: PeerDevice::Unknown, costs }
    }

    /// Follows a message with memory on this device and the peer's memory on the other, if known. One comparison
    /// decides whether to compute the costs again.
    #[inline]
    pub(crate) fn follow(&mut self, estimates: &Estimates, device: Option<DeviceIndex>, other: PeerDevice) -> bool {
        let other = if other == PeerDevice::Unknown { self.other } else { other };
        let changed = (self.version, self.device, self.other) != (self.known.version(), device, other);
        if changed {
            self.work_out(estimates, device, other);
        }
        changed
    }

    /// Computes the costs again if more is known about the same devices.
    #[inline]
    pub(crate) fn catch_up(&mut self, estimates: &Estimates) -> bool {
        self.follow(estimates, self.device, self.other)
    }

    #[cold]
    fn work_out(&mut self, estimates: &Estimates, device: Option<DeviceIndex>, other: PeerDevice) {
        (self.version, self.device, self.other) = (self.known.version(), device, other);
        self.costs = self.between(estimates, device, other);
    }

    /// Returns the present costs.
    #[inline]
    pub(crate) fn costs(&self, estimates: &Estimates) -> DeviceCosts {
        match self.version == self.known.version() {
            true => self.costs,
            false => self.between(estimates, self.device, self.other),
        }
    }

    /// Returns the sizes for which one copy pays, as [`DeviceCosts::direct_sizes`]. Until the location of the peer's
    /// memory is known, it may be on the same device, too. A protocol that is never tried never shows its cost.
    pub(crate) fn direct_sizes(&self, estimates: &Estimates) -> (usize, usize) {
        let (from, to) = self.costs(estimates).direct_sizes();
        if self.other != PeerDevice::Unknown {
            return (from, to);
        }
        let within = self.between(estimates, self.device, PeerDevice::Same).direct_sizes();
        (from.min(within.0), to.max(within.1))
    }

    /// Returns the costs between these two devices.
    pub(crate) fn of(&self, estimates: &Estimates, device: Option<DeviceIndex>, other: PeerDevice) -> DeviceCosts {
        match (self.device, self.other) == (device, other) {
            true => self.costs(estimates),
            false => self.between(estimates, device, other),
        }
    }

    fn between(&self, estimates: &Estimates, device: Option<DeviceIndex>, other: PeerDevice) -> DeviceCosts {
        let measured = device.map_or_else(|| self.known.of_any(), |device| self.known.of(device));
        estimates.costs(measured, other)
    }
}
