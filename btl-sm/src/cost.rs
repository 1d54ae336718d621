//! The costs of operations. Their proportions select protocols. Costs between cores were measured between two cores of
//! one socket. Costs between devices are measured, unless parameters override them.

mod priced;

use std::time::Duration;

use cableway_base::Parameters;
use cableway_btl::Cost;
use cableway_common_cuda::{CopyCost, DeviceCosts as Measured};

pub(crate) use priced::{Pair, Priced};

/// A small message in one direction.
pub(crate) const LATENCY: Duration = Duration::from_nanos(120);

/// Two copies through fragments, which both sides make at the same time.
pub(crate) const SEND: Cost = Cost { fixed: LATENCY, bytes_per_second: 13e9 };

/// One copy, including its system call.
pub(crate) const SINGLE_COPY: Cost = Cost { fixed: Duration::from_nanos(700), bytes_per_second: 12e9 };

/// The costs of messages between two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DeviceCosts {
    /// Staged through host memory.
    pub(crate) staged: Cost,
    /// By one copy of the receiver.
    pub(crate) direct: Cost,
    /// By one copy of the sender.
    pub(crate) push: Cost,
    /// By one copy on a device that several processes share in turn.
    pub(crate) turn: Cost,
}

/// The parameters, and which of them the user has set.
#[derive(Clone, Debug)]
pub(crate) struct Estimates {
    costs: DeviceCosts,
    staged_latency_set: bool,
    staged_rate_set: bool,
    direct_latency_set: bool,
    direct_rate_set: bool,
    push_latency_set: bool,
}

/// The device of the peer's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PeerDevice {
    /// Unknown.
    #[default]
    Unknown,
    /// The device of the own buffer.
    Same,
    /// The device with this identity.
    Device([u8; 16]),
}

/// The time of a message besides its one or two copies, and the share of the slower copy's rate that a pipeline of two
/// copies reaches. Measured with windows and ping-pongs between two H200s, compared with the driver's own copies
/// (benches/results).
const DIRECT_BESIDES: Duration = Duration::from_micros(3);
const STAGED_BESIDES: Duration = Duration::from_micros(6);
const STAGED_SHARE: f64 = 0.8;

/// The relative noise of measurements. Changes below it must not switch protocols.
const ALIKE: f64 = 1.0 / 8.0;

impl Estimates {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let cost = |fixed, rate: usize| Cost { fixed, bytes_per_second: rate.max(1) as f64 };
        let direct = |fixed| cost(fixed, parameters.device_direct_rate);
        Estimates {
            costs: DeviceCosts {
                staged: cost(parameters.device_staged_latency, parameters.device_staged_rate),
                direct: direct(parameters.device_direct_latency),
                push: direct(parameters.device_push_latency),
                turn: direct(parameters.device_turn_latency),
            },
            staged_latency_set: parameters.is_set("device_staged_latency"),
            staged_rate_set: parameters.is_set("device_staged_rate"),
            direct_latency_set: parameters.is_set("device_direct_latency"),
            direct_rate_set: parameters.is_set("device_direct_rate"),
            push_latency_set: parameters.is_set("device_push_latency"),
        }
    }

    /// Returns the costs of messages between a device with these measurements and another one. On one device each copy may
    /// wait for a turn.
    pub(crate) fn costs(&self, measured: Option<&Measured>, other: PeerDevice, turns: bool) -> DeviceCosts {
        let mut costs = self.alone(measured, other);
        if turns && other == PeerDevice::Same {
            (costs.direct, costs.push) = (costs.turn, costs.turn);
        }
        costs
    }

    /// Returns the costs on devices that no other context uses.
    fn alone(&self, measured: Option<&Measured>, other: PeerDevice) -> DeviceCosts {
        let mut costs = self.costs;
        let Some(measured) = measured else { return costs };
        if let (Some(out), Some(back)) = (measured.to_host.figure(), measured.from_host.figure()) {
            let slower = out.bytes_per_second.min(back.bytes_per_second);
            replace(&mut costs.staged.fixed, out.latency + back.latency + STAGED_BESIDES, self.staged_latency_set);
            replace(&mut costs.staged.bytes_per_second, slower * STAGED_SHARE, self.staged_rate_set);
        }
        let peer = match other {
            PeerDevice::Same => measured.within.figure().map(|within| (within, within)),
            PeerDevice::Unknown => measured.peer(None).and_then(|peer| peer.pull.figure().zip(peer.push.figure())),
            PeerDevice::Device(uuid) => {
                measured.peer(Some(&uuid)).and_then(|peer| peer.pull.figure().zip(peer.push.figure()))
            }
        };
        let Some((pull, push)) = peer else { return costs };
        let push = alike(pull, push);
        replace(&mut costs.direct.fixed, pull.latency + DIRECT_BESIDES, self.direct_latency_set);
        replace(&mut costs.push.fixed, push.latency + DIRECT_BESIDES, self.push_latency_set);
        replace(&mut costs.direct.bytes_per_second, pull.bytes_per_second, self.direct_rate_set);
        replace(&mut costs.push.bytes_per_second, push.bytes_per_second, self.direct_rate_set);
        replace(&mut costs.turn.bytes_per_second, pull.bytes_per_second, self.direct_rate_set);
        costs
    }
}

/// Parameters override measurements.
fn replace<T>(estimate: &mut T, measured: T, set: bool) {
    if !set {
        *estimate = measured;
    }
}

/// Returns the cost of a store. If it differs little from a fetch, it counts as equal: then the sender copies small
/// messages, and the receiver copies large ones, which can arrive while the sender computes.
fn alike(pull: CopyCost, push: CopyCost) -> CopyCost {
    let near = |a: f64, b: f64| (a - b).abs() <= a.max(b) * ALIKE;
    let latency = near(pull.latency.as_secs_f64(), push.latency.as_secs_f64());
    let rate = near(pull.bytes_per_second, push.bytes_per_second);
    CopyCost {
        latency: if latency { pull.latency } else { push.latency },
        bytes_per_second: if rate { pull.bytes_per_second } else { push.bytes_per_second },
    }
}

impl DeviceCosts {
    /// Returns the range of sizes for which one copy is not slower than two. It begins at `usize::MAX` if there are
    /// none.
    pub(crate) fn direct_sizes(&self) -> (usize, usize) {
        let (fetched, stored) = (sizes(self.direct, self.staged), sizes(self.push, self.staged));
        (fetched.0.min(stored.0), fetched.1.max(stored.1))
    }
}

fn sizes(one: Cost, two: Cost) -> (usize, usize) {
    let more = one.fixed.as_secs_f64() - two.fixed.as_secs_f64();
    let gain = two.bytes_per_second.recip() - one.bytes_per_second.recip();
    // A float that is too large, infinite or not a number becomes the largest or 0.
    let even = more / gain;
    match (more <= 0.0, gain) {
        (true, gain) if gain >= 0.0 => (1, usize::MAX),
        (true, _) => (1, even as usize),
        (false, gain) if gain > 0.0 => ((even.ceil() as usize).max(1), usize::MAX),
        (false, _) => (usize::MAX, 0),
    }
}

/// The largest single `get` or `put`. These are synchronous, so this limits the time in progress to some 0.1 ms.
pub(crate) const SINGLE_COPY_PIECE: usize = 1 << 20;

#[cfg(test)]
mod tests;
