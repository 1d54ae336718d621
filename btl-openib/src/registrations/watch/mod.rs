//! Detects by userfaultfd(2) whether the memory at an address has changed. It handles no page faults.
//!
//! A mapping is registered with a userfaultfd. A mapping that replaces it, by munmap and mmap, mremap, or a fixed
//! mapping, is not registered. Each check asks the kernel whether the mapping at an address is registered, by a request
//! that fails with one of two errors. The kernel reports changes of pages within a mapping (`MADV_DONTNEED`,
//! `MADV_REMOVE`) before they happen to a thread that marks the range. The program waits until that thread has read the
//! report. So this works with every allocator, and replaces no function of the program.
//!
//! Only private anonymous memory can be watched, because another process or another mapping can change shared memory.
//! Kernels before 5.11 do not open userfaultfd in this way. Since 5.9, pinned pages survive a fork.
//!
//! The thread takes no lock and allocates no memory, because a waiting thread may hold any lock, including the
//! allocator's.

mod kernel;
#[cfg(test)]
mod tests;

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use self::kernel::Kernel;
pub(super) use self::kernel::PAGE;
use crate::NAME;

/// The largest number of ranges that a process watches at a time.
pub(super) const RANGES: usize = 1024;

/// The process's watch. Users keep it alive.
pub(super) struct Watch {
    ranges: Box<[Slot]>,
    /// Indices of unused slots.
    free: Mutex<Vec<usize>>,
    /// The thread has read a report and has not yet marked the range.
    reading: AtomicBool,
    /// The number of reports read.
    reports: AtomicUsize,
    /// Closed by the thread as its last action.
    kernel: ManuallyDrop<Kernel>,
    wakeup: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A watched range. The thread that covers it writes it before it registers the range. The watch thread marks it.
#[derive(Default)]
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    changed: AtomicBool,
}

/// Keeps a range under watch until it is dropped.
pub(super) struct Covered {
    watch: Arc<Watch>,
    slot: usize,
}

impl Watch {
    /// Returns the process's watch.
    ///
    /// # Errors
    /// The kernel lacks support, or denies this process access.
    pub(super) fn shared() -> io::Result<Arc<Watch>> {
        static SHARED: Mutex<Weak<Watch>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        if let Some(watch) = shared.upgrade() {
            return Ok(watch);
        }
        let watch = Self::start()?;
        *shared = Arc::downgrade(&watch);
        Ok(watch)
    }

    pub(super) fn start() -> io::Result<Arc<Watch>> {
        let kernel = Kernel::open()?;
        kernel.prove()?;
        let watch = Arc::new(Watch {
            ranges: (0..RANGES).map(|_| Slot::default()).collect(),
            free: Mutex::new((0..RANGES).rev().collect()),
            reading: AtomicBool::new(false),
            reports: AtomicUsize::new(0),
            kernel: ManuallyDrop::new(kernel),
            wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            thread: Mutex::new(None),
        });
        // The thread gets an address rather than a reference, because it must not drop the last reference.
        let seen = Seen(&raw const *watch);
        let spawned = cableway_base::without_signals(|| {
            std::thread::Builder::new().name("openib-memory".to_owned()).spawn(move || seen.listen())
        });
        *watch.thread.lock() = Some(spawned?);
        Ok(watch)
    }

    /// Returns the number of reports read, all of which are marked. A thread that discards pages continues once its
    /// report was read, and the pages disappear some time later. A range that is covered in between shows no mark.
    pub(super) fn reports(&self) -> usize {
        self.wait_for_marks();
        self.reports.load(Ordering::SeqCst)
    }

    /// A thread that waits for the watch thread continues after the read, before the mark.
    fn wait_for_marks(&self) {
        while self.reading.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Returns whether no more ranges can be covered.
    pub(super) fn is_full(&self) -> bool {
        self.free.lock().is_empty()
    }

    /// Watches these pages. Returns `None` if pages of this kind cannot be watched, or if too many ranges are watched.
    /// Call it before the pages are pinned. Other ranges that overlap count as changed.
    pub(super) fn cover(self: &Arc<Self>, range: Range<usize>) -> Option<Covered> {
        let mut free = self.free.lock();
        for slot in &self.ranges {
            slot.mark(&range);
        }
        let index = free.pop()?;
        let slot = &self.ranges[index];
        slot.changed.store(false, Ordering::SeqCst);
        slot.start.store(range.start, Ordering::SeqCst);
        slot.end.store(range.end, Ordering::SeqCst);
        drop(free);
        let covered = Covered { watch: Arc::clone(self), slot: index };
        match self.kernel.register(&range) {
            Ok(true) if covered.still() => Some(covered),
            Ok(_) => None,
            Err(error) => {
                log::debug!("{NAME}: memory at {:#x} cannot be watched: {error}", range.start);
                None
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get_mut().take() else {
            // SAFETY: this is the last use, and no thread exists that would close it.
            return unsafe { ManuallyDrop::drop(&mut self.kernel) };
        };
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
        let _ = thread.join();
    }
}

impl Covered {
    /// Returns whether all of the range is still the memory that was covered.
    pub(super) fn still(&self) -> bool {
        let slot = &self.watch.ranges[self.slot];
        self.watch.wait_for_marks();
        !slot.changed.load(Ordering::SeqCst) && self.watch.kernel.knows(&self.range())
    }

    fn range(&self) -> Range<usize> {
        let slot = &self.watch.ranges[self.slot];
        slot.start.load(Ordering::SeqCst)..slot.end.load(Ordering::SeqCst)
    }

    /// Unregisters the range, so that the program does not wait for the thread when it discards pages there.
    pub(super) fn release(self) {
        if self.still() {
            self.watch.kernel.unregister(&self.range());
        }
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        let slot = &self.watch.ranges[self.slot];
        slot.end.store(0, Ordering::SeqCst);
        slot.start.store(0, Ordering::SeqCst);
        self.watch.free.lock().push(self.slot);
    }
}

impl Slot {
    fn mark(&self, range: &Range<usize>) {
        if self.start.load(Ordering::SeqCst) < range.end && range.start < self.end.load(Ordering::SeqCst) {
            self.changed.store(true, Ordering::SeqCst);
        }
    }
}

/// The watch as its thread uses it.
struct Seen(*const Watch);

// SAFETY: any thread may use the watch, and it lives until this thread has ended.
unsafe impl Send for Seen {}

impl Seen {
    fn listen(self) {
        // SAFETY: dropping the watch waits for the end of this thread.
        let watch = unsafe { &*self.0 };
        loop {
            let mut sources = [
                PollFd::from_borrowed_fd(watch.kernel.descriptor.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(watch.wakeup.as_fd(), PollFlags::IN),
            ];
            match poll(&mut sources, None) {
                Ok(_) | Err(Errno::INTR) => {}
                // The program waits for this read, so a needless retry is better than no answer.
                Err(_) => std::thread::yield_now(),
            }
            if sources[1].revents().contains(PollFlags::IN) {
                // A thread that frees watched memory waits for a reader. The end of this thread frees memory, and so
                // does the end of the watch. Therefore stop watching before that, and wake all waiting threads.
                // SAFETY: no other code uses it after this, and no other code closes it while there is a thread.
                return unsafe { rustix::io::close(watch.kernel.descriptor.as_raw_fd()) };
            }
            watch.reading.store(true, Ordering::SeqCst);
            while let Some(range) = watch.kernel.next_report() {
                watch.reports.fetch_add(1, Ordering::SeqCst);
                for slot in &watch.ranges {
                    slot.mark(&range);
                }
            }
            watch.reading.store(false, Ordering::SeqCst);
        }
    }
}
