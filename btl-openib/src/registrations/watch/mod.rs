//! Detects by userfaultfd(2) whether the memory at an address has changed. It asks for none of its faults.
//!
//! A mapping that is registered with a userfaultfd is known by that: one that takes its place, by munmap and mmap,
//! mremap, or a fixed mapping, is not registered. Which of the two lies at an address is asked of the kernel each time,
//! by a request that it refuses in any case, with one error or another. What changes pages within a mapping
//! (`MADV_DONTNEED`, `MADV_REMOVE`) is reported before it happens, to a thread that marks it; the program waits until
//! that has read the report. So nothing of the program is replaced, whatever allocator it uses, and no hook of
//! anybody's is needed.
//!
//! Private anonymous memory only: another process, or another mapping, can change what a shared one holds. Kernels
//! before 5.11 do not open it in this way; with 5.9 pinned pages began to stay through a fork.
//!
//! The thread takes no lock and allocates nothing: whoever waits for it may hold any lock, that of the allocator
//! included.

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

/// Ranges watched at a time, in a process.
pub(super) const RANGES: usize = 1024;

/// What watches, for all of a process: who uses it keeps it alive.
pub(super) struct Watch {
    ranges: Box<[Slot]>,
    /// Indices of slots that nobody uses.
    free: Mutex<Vec<usize>>,
    /// The thread is between reading a report and marking what it concerns.
    reading: AtomicBool,
    /// Reports that were read.
    reports: AtomicUsize,
    /// Closed by the thread, as the last thing that it does.
    kernel: ManuallyDrop<Kernel>,
    wakeup: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A watched range. Written by who covers it before the kernel is told of it; marked by the thread.
#[derive(Default)]
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    changed: AtomicBool,
}

/// A range under watch until it is dropped.
pub(super) struct Covered {
    watch: Arc<Watch>,
    slot: usize,
}

impl Watch {
    /// The process's own.
    ///
    /// # Errors
    /// The kernel has not what it takes, or does not let this process have it.
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
        // The thread has what it needs by address: it must not be the one to drop the last of this.
        let seen = Seen(&raw const *watch);
        let spawned = cableway_base::without_signals(|| {
            std::thread::Builder::new().name("openib-memory".to_owned()).spawn(move || seen.listen())
        });
        *watch.thread.lock() = Some(spawned?);
        Ok(watch)
    }

    /// How many reports were read, all of which have been marked. Who discards pages goes on once its report was read,
    /// and the pages go some time after that: what is covered in between shows nothing of it.
    pub(super) fn reports(&self) -> usize {
        self.wait_for_marks();
        self.reports.load(Ordering::SeqCst)
    }

    /// A thread that waits for the watch thread resumes when the report was read, before it is marked.
    fn wait_for_marks(&self) {
        while self.reading.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Whether nothing more can be covered.
    pub(super) fn is_full(&self) -> bool {
        self.free.lock().is_empty()
    }

    /// From now on, what happens to these pages is known. None: they are of a kind that cannot be watched, or too many
    /// ranges are. To be called before the pages are pinned. Other ranges that overlap count as changed from here on.
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
            // SAFETY: this is its last use, and there was no thread to close it.
            return unsafe { ManuallyDrop::drop(&mut self.kernel) };
        };
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
        let _ = thread.join();
    }
}

impl Covered {
    /// Whether all of it is the memory still that it was when it was covered.
    pub(super) fn still(&self) -> bool {
        let slot = &self.watch.ranges[self.slot];
        self.watch.wait_for_marks();
        !slot.changed.load(Ordering::SeqCst) && self.watch.kernel.knows(&self.range())
    }

    fn range(&self) -> Range<usize> {
        let slot = &self.watch.ranges[self.slot];
        slot.start.load(Ordering::SeqCst)..slot.end.load(Ordering::SeqCst)
    }

    /// Has the kernel forget the range, so that the program does not wait for the thread when it discards pages there.
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

/// The watch, as its thread has it.
struct Seen(*const Watch);

// SAFETY: the watch may be used by any thread; it is there until it has seen this one end.
unsafe impl Send for Seen {}

impl Seen {
    fn listen(self) {
        // SAFETY: dropping the watch waits for this thread's end.
        let watch = unsafe { &*self.0 };
        loop {
            let mut sources = [
                PollFd::from_borrowed_fd(watch.kernel.descriptor.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(watch.wakeup.as_fd(), PollFlags::IN),
            ];
            match poll(&mut sources, None) {
                Ok(_) | Err(Errno::INTR) => {}
                // The program waits for whoever reads here: better to be asked again than not to answer.
                Err(_) => std::thread::yield_now(),
            }
            if sources[1].revents().contains(PollFlags::IN) {
                // Who gives memory back that is watched waits for a reader, and the end of a thread gives memory back, as
                // does that of the watch: so nothing is watched from here on, and who waits already is woken.
                // SAFETY: nobody else uses it any more, and nobody else closes it where there is a thread.
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
