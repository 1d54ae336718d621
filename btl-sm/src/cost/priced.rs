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
    /// Whether contexts took turns on the device.
    turns: bool,
    costs: DeviceCosts,
}

impl Priced {
    pub(crate) fn new(known: Arc<Costs>, estimates: &Estimates) -> Self {
        let version = known.version();
        let costs = estimates.costs(known.of_any(), PeerDevice::Unknown, false);
        Priced { known, version, device: None, other: PeerDevice::Unknown, turns: false, costs }
    }

    /// Follows a message with memory on this device and the peer's memory on the other, if known, and whether contexts take
    /// turns. One comparison decides whether to compute the costs again.
    #[inline]
    pub(crate) fn follow(
        &mut self,
        estimates: &Estimates,
        device: Option<DeviceIndex>,
        other: PeerDevice,
        turns: bool,
    ) -> bool {
        let other = if other == PeerDevice::Unknown { self.other } else { other };
        let changed =
            (self.version, self.device, self.other, self.turns) != (self.known.version(), device, other, turns);
        if changed {
            (self.version, self.device, self.other, self.turns) = (self.known.version(), device, other, turns);
            self.costs = self.between(estimates, device, other, turns);
        }
        changed
    }

    /// Computes the costs again if more is known about the same devices.
    #[inline]
    pub(crate) fn catch_up(&mut self, estimates: &Estimates, turns: bool) -> bool {
        self.follow(estimates, self.device, self.other, turns)
    }

    /// Returns the present costs.
    #[inline]
    pub(crate) fn costs(&self, estimates: &Estimates) -> DeviceCosts {
        match self.version == self.known.version() {
            true => self.costs,
            false => self.between(estimates, self.device, self.other, self.turns),
        }
    }

    /// Returns the sizes for which one copy pays, as [`DeviceCosts::direct_sizes`]. Until the location of the peer's
    /// memory is known, it may be on the same device, too. A protocol that is never tried never shows its cost.
    pub(crate) fn direct_sizes(&self, estimates: &Estimates) -> (usize, usize) {
        let (from, to) = self.costs(estimates).direct_sizes();
        if self.other != PeerDevice::Unknown {
            return (from, to);
        }
        let within = self.between(estimates, self.device, PeerDevice::Same, self.turns).direct_sizes();
        (from.min(within.0), to.max(within.1))
    }

    /// Returns the costs between these two devices.
    pub(crate) fn of(
        &self,
        estimates: &Estimates,
        device: Option<DeviceIndex>,
        other: PeerDevice,
        turns: bool,
    ) -> DeviceCosts {
        match (self.device, self.other, self.turns) == (device, other, turns) {
            true => self.costs(estimates),
            false => self.between(estimates, device, other, turns),
        }
    }

    fn between(
        &self,
        estimates: &Estimates,
        device: Option<DeviceIndex>,
        other: PeerDevice,
        turns: bool,
    ) -> DeviceCosts {
        let measured = device.map_or_else(|| self.known.of_any(), |device| self.known.of(device));
        estimates.costs(measured, other, turns)
    }
}
