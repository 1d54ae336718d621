//! The costs by which a link to one peer decides, which follow what becomes known.

use std::sync::Arc;

use cableway_common_cuda::{Costs, DeviceIndex};

use super::{DeviceCosts, Estimates, PeerDevice};

/// The costs of messages between the devices that were last seen on either side.
pub(crate) struct Priced {
    known: Arc<Costs>,
    /// Of what is known when these were worked out.
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

    /// A message is about memory of this device, and the peer's is there, as far as its place is known by now. Whether
    /// costs are to be worked out anew is one comparison of each.
    #[inline]
    pub(crate) fn follow(&mut self, estimates: &Estimates, device: Option<DeviceIndex>, other: PeerDevice) -> bool {
        let other = if other == PeerDevice::Unknown { self.other } else { other };
        let changed = (self.version, self.device, self.other) != (self.known.version(), device, other);
        if changed {
            self.work_out(estimates, device, other);
        }
        changed
    }

    /// Something became known of the devices that were seen already.
    #[inline]
    pub(crate) fn catch_up(&mut self, estimates: &Estimates) -> bool {
        self.follow(estimates, self.device, self.other)
    }

    #[cold]
    fn work_out(&mut self, estimates: &Estimates, device: Option<DeviceIndex>, other: PeerDevice) {
        (self.version, self.device, self.other) = (self.known.version(), device, other);
        self.costs = self.between(estimates, device, other);
    }

    /// The costs at present.
    #[inline]
    pub(crate) fn costs(&self, estimates: &Estimates) -> DeviceCosts {
        match self.version == self.known.version() {
            true => self.costs,
            false => self.between(estimates, self.device, self.other),
        }
    }

    /// The sizes for which one copy pays, as [`DeviceCosts::direct_sizes`]. As long as nobody knows where the peer's memory
    /// is, it may be on the same device, too: what is not tried never tells.
    pub(crate) fn direct_sizes(&self, estimates: &Estimates) -> (usize, usize) {
        let (from, to) = self.costs(estimates).direct_sizes();
        if self.other != PeerDevice::Unknown {
            return (from, to);
        }
        let within = self.between(estimates, self.device, PeerDevice::Same).direct_sizes();
        (from.min(within.0), to.max(within.1))
    }

    /// The costs between these two devices.
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
