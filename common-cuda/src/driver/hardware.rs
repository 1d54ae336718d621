//! The check whether this machine can have a vendor's device.
//!
//! A program may load its driver late. The check for a late driver adds some 20 ns to each classification. On a machine
//! without a device it is skipped: the classification is one branch.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if a driver of any vendor may appear in this process.
pub(crate) static ANY_EXPECTED: AtomicBool = AtomicBool::new(false);

/// A vendor's hardware.
pub(crate) struct Hardware {
    /// True if a driver may appear in this process.
    pub(crate) expected: AtomicBool,
    /// Files that the vendor's kernel module creates.
    files: &'static [&'static str],
    /// The vendor's PCI number, as the kernel prints it.
    pci_vendor: &'static str,
}

impl Hardware {
    pub(crate) const fn new(files: &'static [&'static str], pci_vendor: &'static str) -> Hardware {
        Hardware { expected: AtomicBool::new(false), files, pci_vendor }
    }

    /// Returns whether a driver may appear in this process.
    #[inline]
    pub(crate) fn is_expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Has later questions look for a driver.
    pub(crate) fn expect(&self) {
        ANY_EXPECTED.store(true, Ordering::Relaxed);
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Returns false if the machine certainly has no device.
    pub(crate) fn may_be_here(&self) -> bool {
        self.may_be_in(Path::new("/"))
    }

    fn may_be_in(&self, root: &Path) -> bool {
        if cfg!(not(target_arch = "x86_64")) || self.files.iter().any(|file| root.join(file).exists()) {
            return true;
        }
        // The first process that initialises the driver may load the module. proc(5): address, then vendor and device.
        let devices = std::fs::read_to_string(root.join("proc/bus/pci/devices")).unwrap_or_default();
        let mut vendors = devices.lines().filter_map(|line| line.split_ascii_whitespace().nth(1)?.get(..4));
        devices.is_empty() || vendors.any(|vendor| vendor == self.pci_vendor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static HARDWARE: Hardware = Hardware::new(&["dev/nvidiactl"], "10de");

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_machine_without_device_files_and_pci_devices_has_no_device() {
        let root = std::env::temp_dir().join(format!("cableway-hardware-{}", std::process::id()));
        let pci = root.join("proc/bus/pci");
        std::fs::create_dir_all(&pci).unwrap();
        std::fs::create_dir_all(root.join("dev")).unwrap();
        assert!(HARDWARE.may_be_in(&root), "nothing tells");
        std::fs::write(pci.join("devices"), "0000\t80860d57\t0\n0008\t1af410de\t0\n").unwrap();
        assert!(!HARDWARE.may_be_in(&root));
        std::fs::write(root.join("dev/nvidiactl"), "").unwrap();
        assert!(HARDWARE.may_be_in(&root));
        std::fs::remove_file(root.join("dev/nvidiactl")).unwrap();
        std::fs::write(pci.join("devices"), "0000\t80860d57\t0\n0100\t10de2335\tab\n").unwrap();
        assert!(HARDWARE.may_be_in(&root), "its module is not loaded yet");
        std::fs::remove_dir_all(root).unwrap();
    }
}
