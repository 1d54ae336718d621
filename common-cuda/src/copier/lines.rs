//! The words by which the host and the resident copier talk, as kernels/resident.cu declares them.
//!
//! Each word has one writer. A group's line holds its next command. A group's report holds the launch that it runs in,
//! its last finished command, and whether it has ended.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::driver::{Driver, Failure};
use crate::memory::HostWords;

/// Groups of lanes that work side by side.
pub(super) const GROUPS: usize = 16;

/// A line that the host writes.
#[repr(C, align(64))]
struct Line {
    from: AtomicU64,
    /// Holds the command's number twice, each time behind the fields that it validates: the device reads parts of 16
    /// bytes at once.
    len_number: AtomicU64,
    to: AtomicU64,
    zero_number: AtomicU64,
    stop: AtomicU32,
}

/// A report, which the group writes.
#[repr(C, align(64))]
struct Report {
    started: AtomicU32,
    done: AtomicU32,
    ended: AtomicU32,
}

#[repr(C)]
struct Words {
    lines: [Line; GROUPS],
    reports: [Report; GROUPS],
}
const _: () = assert!(size_of::<Words>() == 2 * GROUPS * 64);

pub(super) struct Lines(HostWords);

impl Lines {
    /// The context is current.
    pub(super) fn new(driver: &dyn Driver) -> Result<Lines, Failure> {
        Ok(Lines(HostWords::new(driver, size_of::<Words>())?))
    }

    /// Returns the device addresses of the lines and the reports.
    pub(super) fn device(&self) -> (u64, u64) {
        (self.0.device(), self.0.device() + (GROUPS * size_of::<Line>()) as u64)
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped, zero at first, and atomics throughout.
        unsafe { &*self.0.address::<Words>() }
    }

    /// Gives a group a command. The group has finished the one before, and the kernel has started.
    pub(super) fn command(&self, group: usize, number: u32, (to, from): (u64, u64), len: u32) {
        let line = &self.words().lines[group];
        let number = u64::from(number) << 32;
        line.from.store(from, Ordering::Relaxed);
        line.to.store(to, Ordering::Relaxed);
        line.len_number.store(number | u64::from(len), Ordering::Release);
        line.zero_number.store(number, Ordering::Release);
    }

    /// Tells the groups of this launch to end.
    pub(super) fn stop(&self, launch: u32) {
        for line in &self.words().lines {
            line.stop.store(launch, Ordering::Release);
        }
    }

    pub(super) fn started(&self, group: usize, launch: u32) -> bool {
        self.words().reports[group].started.load(Ordering::Acquire) == launch
    }

    pub(super) fn ended(&self, group: usize, launch: u32) -> bool {
        self.words().reports[group].ended.load(Ordering::Acquire) == launch
    }

    pub(super) fn done(&self, group: usize, number: u32) -> bool {
        self.words().reports[group].done.load(Ordering::Acquire) == number
    }

    /// Unregisters the words in their context. The context is current, and no kernel uses the words.
    pub(super) fn destroy(&self, driver: &dyn Driver) {
        self.0.destroy(driver);
    }
}
