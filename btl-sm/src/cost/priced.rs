//! The costs by which a link to one peer decides. They follow the known facts about devices.

use std::sync::Arc;

use cableway_common_cuda::{Costs, DeviceIndex};

use super::{DeviceCosts, Estimates, PeerDevice};

/// The costs of messages between the last used devices of both sides.
pub(crate) struct Priced {
    known: Arc<Costs>,
    /// The version of the costs when these were computed.
    version: usize,
    of: Pair,
    costs: DeviceCosts,
}

/// What the costs of a message depend on.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The device of the own memory.
    pub(crate) device: Option<DeviceIndex>,
    /// The device of the peer's.
    pub(crate) other: PeerDevice,
    /// Whether contexts take turns on the device.
    pub(crate) turns: bool,
}

impl Priced {
    pub(crate) fn new(known: Arc<Costs>, estimates: &Estimates) -> Self {
        let (version, of) = (known.version(), Pair::default());
        let costs = estimates.costs(known.of_any(), of.other, of.turns);
        Priced { known, version, of, costs }
    }

    /// Follows a message. If the peer's device is unknown, it counts as the one before. One comparison decides whether to
    /// compute the costs again.
    #[inline]
    pub(crate) fn follow(&mut self, estimates: &Estimates, mut of: Pair) -> bool {
        if of.other == PeerDevice::Unknown {
            of.other = self.of.other;
        }
        let changed = (self.version, self.of) != (self.known.version(), of);
        if changed {
            self.work_out(estimates, of);
        }
        changed
    }

    /// Computes the costs again if more is known about the same devices.
    #[inline]
    pub(crate) fn catch_up(&mut self, estimates: &Estimates, turns: bool) -> bool {
        self.follow(estimates, Pair { turns, ..self.of })
    }

    #[cold]
    fn work_out(&mut self, estimates: &Estimates, of: Pair) {
        (self.version, self.of) = (self.known.version(), of);
        self.costs = self.between(estimates, of);
    }

    /// Returns the present costs.
    #[inline]
    pub(crate) fn costs(&self, estimates: &Estimates) -> DeviceCosts {
        self.of(estimates, self.of)
    }

    /// Returns the sizes for which one copy pays, as [`DeviceCosts::direct_sizes`]. Until the location of the peer's
    /// memory is known, it may be on the same device, too. A protocol that is never tried never shows its cost.
    pub(crate) fn direct_sizes(&self, estimates: &Estimates) -> (usize, usize) {
        let (from, to) = self.costs(estimates).direct_sizes();
        if self.of.other != PeerDevice::Unknown {
            return (from, to);
        }
        let within = self.between(estimates, Pair { other: PeerDevice::Same, ..self.of }).direct_sizes();
        (from.min(within.0), to.max(within.1))
    }

    /// Returns the costs between these two devices.
    #[inline]
    pub(crate) fn of(&self, estimates: &Estimates, of: Pair) -> DeviceCosts {
        match (self.version, self.of) == (self.known.version(), of) {
            true => self.costs,
            false => self.between(estimates, of),
        }
    }

    fn between(&self, estimates: &Estimates, Pair { device, other, turns }: Pair) -> DeviceCosts {
        let measured = device.map_or_else(|| self.known.of_any(), |device| self.known.of(device));
        estimates.costs(measured, other, turns)
    }
}
