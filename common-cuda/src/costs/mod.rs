//! Costs of copies by a device of this machine: measured once, kept in a file, and valid until a process ends.
//!
//! A table holds the costs of one device's copy engines and kernels. It is set once, and decisions read it without a
//! lock. Until then, and for missing rows, the estimates among the parameters apply. Two processes may have different
//! tables (one has read a file that the other has not). One process makes each decision and the other follows it, so a
//! wrong figure costs time and never a message.

pub(crate) mod folder;
pub(crate) mod text;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::location::DeviceIndex;

/// The cost of a kind of copy: a latency, and a time for each byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyCost {
    /// The time of a copy of a few bytes, from the call until its end is seen.
    pub latency: Duration,
    /// The rate of further bytes.
    pub bytes_per_second: f64,
}

impl CopyCost {
    /// Returns the time that this many bytes take.
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.latency.as_secs_f64() + bytes as f64 / self.bytes_per_second
    }
}

/// The state of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Known<T> {
    /// The cost was not measured yet.
    #[default]
    Nothing,
    /// The cost cannot be measured here: the driver refuses the operation, or no plausible figure resulted.
    Refused,
    /// The measured cost.
    Is(T),
}

impl<T> Known<T> {
    /// Returns the figure, if there is one.
    pub fn figure(self) -> Option<T> {
        match self {
            Known::Is(figure) => Some(figure),
            Known::Nothing | Known::Refused => None,
        }
    }

    /// Checks whether the row needs no measurement.
    pub fn is_settled(&self) -> bool {
        !matches!(self, Known::Nothing)
    }
}

/// Measured costs of one device.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceCosts {
    /// Copies from the device to registered host memory.
    pub to_host: Known<CopyCost>,
    /// Copies from registered host memory to the device.
    pub from_host: Known<CopyCost>,
    /// Copies within the device's memory.
    pub within: Known<CopyCost>,
    /// The time of each further copy, if several are issued one by one.
    pub call: Known<Duration>,
    /// Short rows a second of a 2-D copy to host memory.
    pub rows_per_second: Known<f64>,
    /// The time of each further copy to another device, if several are issued together.
    pub several: Known<Duration>,
    /// Several copies to another device by one launch of a kernel: all of their bytes.
    pub kernel: Known<CopyCost>,
    /// The costs of copies to and from other devices.
    pub peers: Vec<PeerCosts>,
}

impl DeviceCosts {
    /// Returns the costs without refusals, which may be caused by a container and not by the device.
    pub(crate) fn figures(&self) -> DeviceCosts {
        fn figure<T: Copy>(known: Known<T>) -> Known<T> {
            known.figure().map_or(Known::Nothing, Known::Is)
        }
        let peer = |peer: &PeerCosts| PeerCosts { push: figure(peer.push), pull: figure(peer.pull), ..*peer };
        let any = |peer: &PeerCosts| peer.push.is_settled() || peer.pull.is_settled();
        DeviceCosts {
            to_host: figure(self.to_host),
            from_host: figure(self.from_host),
            within: figure(self.within),
            call: figure(self.call),
            rows_per_second: figure(self.rows_per_second),
            several: figure(self.several),
            kernel: figure(self.kernel),
            peers: self.peers.iter().map(peer).filter(any).collect(),
        }
    }

    /// Returns the costs of copies between it and the device of this identity.
    ///
    /// Without an identity it returns those of the nearest known device. Such decisions come before the location of the
    /// other buffer is known. A trial corrects an estimate that is too low, but nothing corrects one that is too high.
    pub fn peer(&self, device: Option<&[u8; 16]>) -> Option<PeerCosts> {
        match device {
            Some(device) => self.peers.iter().find(|peer| peer.device == *device).copied(),
            None => {
                let seconds = |peer: &PeerCosts| peer.pull.figure().map_or(f64::MAX, |pull| pull.seconds(1 << 20));
                self.peers.iter().copied().min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
            }
        }
    }

    /// Checks whether a kernel makes so many copies to another device in clearly less time than copy engines; `None` if
    /// that is not known.
    ///
    /// A kernel occupies multiprocessors that the program could use. If both take the same time, prefer copy engines.
    pub(crate) fn kernel_is_faster(&self, copies: usize, bytes: u64) -> Option<bool> {
        const CLEARLY: f64 = 1.25;
        let (kernel, several) = (self.kernel.figure()?, self.several.figure()?);
        let push = self.peer(None)?.push.figure()?;
        let engine = push.seconds(bytes) + several.as_secs_f64() * copies.saturating_sub(1) as f64;
        Some(kernel.seconds(bytes) * CLEARLY < engine)
    }
}

/// Measured costs of copies that one device makes to and from another device.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PeerCosts {
    /// The identity of the other device.
    pub device: [u8; 16],
    /// The device stores into the other device's memory.
    pub push: Known<CopyCost>,
    /// The device fetches from the other device's memory.
    pub pull: Known<CopyCost>,
}

impl PeerCosts {
    /// This device's side: another device fetches from it, or stores into it.
    pub fn new(device: [u8; 16], pull: Known<CopyCost>, push: Known<CopyCost>) -> Self {
        PeerCosts { device, push, pull }
    }
}

/// The source of a device's costs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostOrigin {
    /// The costs are the estimates in the parameter table, for this reason.
    Default(String),
    /// The costs were read from or written to a file.
    File {
        /// The file.
        path: std::path::PathBuf,
        /// When the costs were measured, and how long that took.
        measured: String,
    },
}

/// A report on the costs of one device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CostReport {
    /// The device.
    pub device: DeviceIndex,
    /// The source of the costs.
    pub origin: CostOrigin,
    /// The known costs.
    pub costs: DeviceCosts,
}

/// The largest number of devices with known costs. Estimates apply to further devices.
const DEVICES: usize = 32;

/// The known costs of the devices of this process.
#[derive(Debug, Default)]
pub struct Costs {
    devices: [OnceLock<DeviceCosts>; DEVICES],
    known: AtomicUsize,
}

impl Costs {
    /// Counts the devices with known costs. The count changes with each new one.
    #[inline]
    pub fn version(&self) -> usize {
        self.known.load(Ordering::Acquire)
    }

    /// Returns the costs of a device.
    #[inline]
    pub fn of(&self, device: DeviceIndex) -> Option<&DeviceCosts> {
        self.devices.get(device.0 as usize)?.get()
    }

    /// Returns the costs of the first device with known costs.
    pub fn of_any(&self) -> Option<&DeviceCosts> {
        self.devices.iter().find_map(OnceLock::get)
    }

    /// Sets the costs of a device. Earlier costs of the device stay.
    pub(crate) fn set(&self, device: DeviceIndex, costs: DeviceCosts) {
        let place = self.devices.get(device.0 as usize);
        if place.is_some_and(|place| place.set(costs).is_ok()) {
            self.known.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(latency: f64, rate: f64) -> Known<CopyCost> {
        Known::Is(CopyCost { latency: Duration::from_secs_f64(latency * 1e-6), bytes_per_second: rate * 1e9 })
    }

    fn peer(number: u8, pull: Known<CopyCost>) -> PeerCosts {
        PeerCosts { device: [number; 16], push: cost(6.9, 392.0), pull }
    }

    /// The figures are those of two H200s (benches/results, 2026-11-22): 64 copies of 64 KiB take 55 us by copy engines
    /// and 24 by a kernel, and windows of 64 take as long either way from 512 KiB on.
    #[test]
    fn a_kernel_makes_many_small_copies_and_no_large_ones() {
        let costs = DeviceCosts {
            several: Known::Is(Duration::from_nanos(600)),
            kernel: cost(9.0, 342.0),
            peers: vec![peer(1, cost(7.2, 392.0))],
            ..DeviceCosts::default()
        };
        let faster = |copies: usize, len: u64| costs.kernel_is_faster(copies, copies as u64 * len).unwrap();
        assert!(faster(64, 8) && faster(64, 64 << 10) && faster(64, 256 << 10));
        assert!(!faster(64, 1 << 20) && !faster(2, 8) && !faster(1, 8));
        assert_eq!(DeviceCosts { kernel: Known::Refused, ..costs.clone() }.kernel_is_faster(64, 64), None);
        assert_eq!(DeviceCosts { peers: Vec::new(), ..costs }.kernel_is_faster(64, 64), None);
    }

    #[test]
    fn unknown_peers_have_the_costs_of_the_nearest_peer() {
        let (near, far) = (peer(1, cost(7.0, 390.0)), peer(2, cost(9.0, 20.0)));
        let costs = DeviceCosts { peers: vec![peer(3, Known::Refused), far, near], ..DeviceCosts::default() };
        assert_eq!(costs.peer(Some(&[1; 16])), Some(near));
        assert_eq!(costs.peer(Some(&[9; 16])), None);
        assert_eq!(costs.peer(None), Some(near));
        assert_eq!(DeviceCosts::default().peer(None), None);
    }

    #[test]
    fn costs_are_set_once() {
        let costs = Costs::default();
        assert!(costs.of_any().is_none() && costs.of(DeviceIndex(u32::MAX)).is_none());
        let measured = DeviceCosts { call: Known::Is(Duration::from_nanos(1500)), ..DeviceCosts::default() };
        costs.set(DeviceIndex(3), measured.clone());
        costs.set(DeviceIndex(3), DeviceCosts::default());
        costs.set(DeviceIndex(u32::MAX), DeviceCosts::default());
        assert_eq!((costs.version(), costs.of(DeviceIndex(3)), costs.of_any()), (1, Some(&measured), Some(&measured)));
    }
}
