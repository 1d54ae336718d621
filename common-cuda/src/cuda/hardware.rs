//! Whether this machine can have a device at all.
//!
//! A program may load its driver long after we looked, and finding that out costs each question about an address some
//! 20 ns. Where there is no device a driver has nothing to allocate, and the question is a branch.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once a driver may turn up in this process.
pub(super) static EXPECTED: AtomicBool = AtomicBool::new(false);

/// Whether a driver may turn up in this process.
#[inline]
pub(super) fn expected() -> bool {
    EXPECTED.load(Ordering::Relaxed)
}

/// From now on a driver is looked for.
pub(super) fn expect() {
    EXPECTED.store(true, Ordering::Relaxed);
}

/// False if the machine certainly has no device.
pub(super) fn may_be_here() -> bool {
    may_be_in(Path::new("/"))
}

/// What the kernel's module makes when it is loaded; in WSL it is Windows that has the device.
const SIGNS: [&str; 4] = ["dev/nvidiactl", "dev/nvidia-uvm", "dev/dxg", "proc/driver/nvidia"];
/// NVIDIA's number among PCI vendors.
const VENDOR: &str = "10de";

fn may_be_in(root: &Path) -> bool {
    if cfg!(not(target_arch = "x86_64")) || SIGNS.iter().any(|sign| root.join(sign).exists()) {
        return true;
    }
    // The module may be loaded by whoever first initialises the driver. proc(5): address, then vendor and device.
    let devices = std::fs::read_to_string(root.join("proc/bus/pci/devices")).unwrap_or_default();
    let mut vendors = devices.lines().filter_map(|line| line.split_ascii_whitespace().nth(1)?.get(..4));
    devices.is_empty() || vendors.any(|vendor| vendor == VENDOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_machine_without_nodes_and_without_the_vendor_has_none() {
        let root = std::env::temp_dir().join(format!("cableway-hardware-{}", std::process::id()));
        let pci = root.join("proc/bus/pci");
        std::fs::create_dir_all(&pci).unwrap();
        std::fs::create_dir_all(root.join("dev")).unwrap();
        assert!(may_be_in(&root), "nothing tells");
        std::fs::write(pci.join("devices"), "0000\t80860d57\t0\n0008\t1af410de\t0\n").unwrap();
        assert!(!may_be_in(&root));
        std::fs::write(root.join("dev/nvidiactl"), "").unwrap();
        assert!(may_be_in(&root));
        std::fs::remove_file(root.join("dev/nvidiactl")).unwrap();
        std::fs::write(pci.join("devices"), "0000\t80860d57\t0\n0100\t10de2335\tab\n").unwrap();
        assert!(may_be_in(&root), "its module is not loaded yet");
        std::fs::remove_dir_all(root).unwrap();
    }
}
