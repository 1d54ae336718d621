//! Devices that measure costs, the folder of the results, and the resources of the process.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cableway_common_cuda::{BufferKind, DeviceBuffer, DeviceCosts, DeviceIndex, Devices};

use crate::common::{app, devices_with};

pub(crate) const DEVICE: DeviceIndex = DeviceIndex(0);
/// The time limit of a wait. Only a hang takes so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A temporary folder, removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("cableway-cost-tests-{name}-{}", std::process::id())))
    }

    pub(crate) fn set(&self) -> String {
        format!("costs_folder={}", self.0.display())
    }

    /// Returns the files in the folder, except the lock.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().map(|entry| entry.unwrap().path());
        entries.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with("lock-")).collect()
    }

    pub(crate) fn measure(&self) -> Devices {
        devices_with(&["costs=measure", &self.set()])
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Allocates device memory and classifies it, as a message does.
pub(crate) fn first_use(devices: &Devices, device: DeviceIndex) -> DeviceBuffer {
    let buffer = DeviceBuffer::new(devices, device, BufferKind::Device, 1 << 20).unwrap();
    assert!(buffer.location().on_device());
    buffer
}

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn known(devices: &Devices) -> DeviceCosts {
    let costs = devices.costs();
    until("the costs become known", || costs.of(DEVICE).is_some());
    costs.of(DEVICE).unwrap().clone()
}

/// Measures until nothing is left. On a busy machine several rounds continue an incomplete measurement.
pub(crate) fn measured(folder: &Folder) -> (Devices, DeviceBuffer, DeviceCosts) {
    let begun = Instant::now();
    loop {
        let devices = folder.measure();
        let buffer = first_use(&devices, DEVICE);
        let costs = known(&devices);
        let links = devices.facts().unwrap().links;
        let peers = links.iter().filter(|link| link.from == DEVICE && link.peer_access).count();
        let settled = costs.peers.iter().filter(|peer| peer.push.is_settled() && peer.pull.is_settled()).count();
        let alone = costs.to_host.is_settled() && costs.from_host.is_settled() && costs.within.is_settled();
        if alone && settled == peers && (costs.kernel.is_settled() || peers == 0) {
            return (devices, buffer, costs);
        }
        assert!(begun.elapsed() < PATIENCE, "{costs:?}");
    }
}

pub(crate) fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns the number of measuring threads.
pub(crate) fn measuring_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
    tasks.filter(|name| std::fs::read_to_string(name).is_ok_and(|name| name.trim() == "cableway-costs")).count()
}

/// Returns the signal masks of the measuring threads.
pub(crate) fn signals_blocked() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("status"));
    let status = tasks.filter_map(|path| std::fs::read_to_string(path).ok());
    let ours = status.filter(|text| text.starts_with("Name:\tcableway-costs\n"));
    let mask = |text: String| text.lines().find_map(|line| line.strip_prefix("SigBlk:\t").map(str::to_owned));
    ours.filter_map(mask).map(|mask| u64::from_str_radix(&mask, 16).unwrap()).collect()
}

pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the number of mappings of this process, except the heap's.
pub(crate) fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// Threads, descriptors, mappings, and the driver's events and streams of this process.
pub(crate) fn held() -> [usize; 5] {
    let (events, streams) = app().live().unwrap_or_default();
    [threads(), descriptors(), mapped(), events as usize, streams as usize]
}
