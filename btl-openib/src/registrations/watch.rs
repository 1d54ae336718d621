//! Tells whether an address still is the memory that it was: by userfaultfd(2), of whose faults none is asked for.
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

use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap, userfaultfd};

use super::PAGE;
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
    /// Closed by the thread, as the last thing that it does.
    kernel: ManuallyDrop<Kernel>,
    bell: OwnedFd,
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
            kernel: ManuallyDrop::new(kernel),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            thread: Mutex::new(None),
        });
        // The thread has what it needs by address: it must not be the one to drop the last of this.
        let seen = Seen(&raw const *watch);
        let spawned = crate::connection::without_signals(|| {
            std::thread::Builder::new().name("openib-memory".to_owned()).spawn(move || seen.listen())
        });
        *watch.thread.lock() = Some(spawned?);
        Ok(watch)
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
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        let _ = thread.join();
    }
}

impl Covered {
    /// Whether all of it is the memory still that it was when it was covered.
    pub(super) fn still(&self) -> bool {
        let slot = &self.watch.ranges[self.slot];
        // Who waits for the thread goes on as soon as it has read, which is before it has marked.
        while self.watch.reading.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
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
                PollFd::from_borrowed_fd(watch.bell.as_fd(), PollFlags::IN),
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
                for slot in &watch.ranges {
                    slot.mark(&range);
                }
            }
            watch.reading.store(false, Ordering::SeqCst);
        }
    }
}

/// The kernel's side: see userfaultfd(2), ioctl_userfaultfd(2) and `linux/userfaultfd.h`.
struct Kernel {
    descriptor: OwnedFd,
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`, and with other words for the last two `struct uffdio_continue`.
#[repr(C)]
struct Request {
    start: u64,
    len: u64,
    mode: u64,
    answer: u64,
}

/// `struct uffd_msg` of a removal.
#[repr(C)]
#[derive(Default)]
struct Report {
    event: u8,
    reserved: [u8; 7],
    start: u64,
    end: u64,
    unused: u64,
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Request>() == 32 && size_of::<Report>() == 32);

impl Kernel {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const UNREGISTER: libc::c_ulong = 0x8010_aa01;
    const CONTINUE: libc::c_ulong = 0xc020_aa07;

    const VERSION: u64 = 0xaa;
    const WRITE_PROTECT: u64 = 1 << 1;
    const MINOR: u64 = 1 << 2;
    const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
    const FEATURE_REMOVE: u64 = 1 << 3;
    const REMOVED: u8 = 0x15;

    fn open() -> io::Result<Self> {
        // Faults of the kernel's are none of ours: so that unprivileged processes may have it. rustix has no name for
        // it (`UFFD_USER_MODE_ONLY`).
        let user_mode_only = UserfaultfdFlags::from_bits_retain(1);
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | user_mode_only;
        // SAFETY: no faults are asked for, so that no memory of anybody's changes by it.
        let kernel = Kernel { descriptor: unsafe { userfaultfd(flags) }? };
        let features = Self::FEATURE_WRITE_PROTECT | Self::FEATURE_REMOVE;
        let mut api = Api { api: Self::VERSION, features, ioctls: 0 };
        // SAFETY: the structure is this request's.
        unsafe { kernel.ask(Self::API, (&raw mut api).cast()) }?;
        Ok(kernel)
    }

    /// Tries whether this kernel answers as the others of which it is known.
    fn prove(&self) -> io::Result<()> {
        let len = 4 * PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new mappings; the second takes the place of a part of the first, which nothing refers to.
        let told = unsafe {
            let address = mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)?;
            let range = address as usize..address as usize + len;
            let before = self.knows(&range);
            let watched = self.register(&range);
            let registered = self.knows(&range);
            let replaced = mmap_anonymous(address.add(PAGE), PAGE, protection, MapFlags::PRIVATE | MapFlags::FIXED);
            let after = self.knows(&range);
            munmap(address, len)?;
            let shared = mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::SHARED)?;
            let foreign = self.register(&(shared as usize..shared as usize + len));
            munmap(shared, len)?;
            replaced?;
            !before && watched? && registered && !after && !foreign?
        };
        if told { Ok(()) } else { Err(io::Error::other("this kernel's userfaultfd answers in another way")) }
    }

    /// Registers a mapping. False: it is shared memory, or a file's.
    fn register(&self, range: &Range<usize>) -> io::Result<bool> {
        let register = |mode| {
            let mut request = Request { start: range.start as u64, len: range.len() as u64, mode, answer: 0 };
            // SAFETY: the structure is this request's.
            unsafe { self.ask(Self::REGISTER, (&raw mut request).cast()) }
        };
        // Only shared memory has faults of this kind. None may wait for an answer: it is unregistered at once.
        if register(Self::MINOR).is_ok() {
            self.unregister(range);
            return Ok(false);
        }
        // Pages would have to be protected before anybody faulted, and none are.
        match register(Self::WRITE_PROTECT) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn unregister(&self, range: &Range<usize>) {
        let mut request = [range.start as u64, range.len() as u64];
        // SAFETY: the structure is this request's.
        let done = unsafe { self.ask(Self::UNREGISTER, request.as_mut_ptr().cast()) };
        if let Err(error) = done {
            log::debug!("{NAME}: memory at {:#x} stays watched: {error}", range.start);
        }
    }

    /// Whether the range lies in one mapping that is registered. To continue a fault is for shared memory only: of
    /// ours the kernel says that it is none (`EINVAL`), but before that whether it is registered at all (`ENOENT`).
    fn knows(&self, range: &Range<usize>) -> bool {
        /// While somebody discards pages, the kernel has one ask again; not to know after so often is no error.
        const ATTEMPTS: usize = 1000;
        for _ in 0..ATTEMPTS {
            let mut request = Request { start: range.start as u64, len: range.len() as u64, mode: 0, answer: 0 };
            // SAFETY: the structure is this request's, which ends in an error whatever lies there.
            match unsafe { self.ask(Self::CONTINUE, (&raw mut request).cast()) }.map_err(|error| error.raw_os_error()) {
                Err(Some(libc::EAGAIN)) => std::thread::yield_now(),
                answer => return answer == Err(Some(libc::EINVAL)),
            }
        }
        false
    }

    /// A range of pages that are about to be discarded, by a thread that goes on from here; none if none waits.
    fn next_report(&self) -> Option<Range<usize>> {
        let mut bytes = [0; size_of::<Report>()];
        loop {
            match rustix::io::read(&self.descriptor, &mut bytes) {
                Ok(len) if len == bytes.len() => {}
                Err(Errno::INTR) => continue,
                _ => return None,
            }
            // SAFETY: integers, for which any bytes will do.
            let report: Report = unsafe { std::mem::transmute(bytes) };
            if report.event == Self::REMOVED {
                return Some(report.start as usize..report.end as usize);
            }
        }
    }

    /// # Safety
    /// `argument` points to the structure of the request.
    unsafe fn ask(&self, request: libc::c_ulong, argument: *mut libc::c_void) -> io::Result<()> {
        // SAFETY: the caller's promise.
        match unsafe { libc::ioctl(self.descriptor.as_raw_fd(), request, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use rustix::mm::{Advice, MremapFlags, madvise, mremap, mremap_fixed};

    use super::*;

    const LEN: usize = 16 * PAGE;

    /// One of its own, so that the tests do not take each other's ranges. None where this machine does not let us.
    fn watch() -> Option<Arc<Watch>> {
        Watch::start().inspect_err(|error| println!("skipped: no userfaultfd: {error}")).ok()
    }

    fn map(at: *mut c_void, len: usize, flags: MapFlags) -> *mut c_void {
        let flags = if at.is_null() { flags } else { flags | MapFlags::FIXED };
        // SAFETY: at an address of the kernel's choice, or in place of a mapping of the test's.
        unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap()
    }

    fn unmap(at: *mut c_void, len: usize) {
        // SAFETY: a mapping of the test's, to which nothing refers.
        unsafe { munmap(at, len) }.unwrap();
    }

    fn range(address: *mut c_void, len: usize) -> Range<usize> {
        address as usize..address as usize + len
    }

    #[test]
    fn what_takes_the_place_of_memory_is_told_from_it() {
        let Some(watch) = watch() else { return };
        let changes: [fn(*mut c_void); 6] = [
            |at| unmap(at, LEN),
            |at| _ = map(at, LEN, MapFlags::PRIVATE),
            |at| _ = map(at.wrapping_byte_add(LEN - PAGE), PAGE, MapFlags::PRIVATE),
            // SAFETY: the test's own page, to which nothing refers.
            |at| unsafe { madvise(at.wrapping_byte_add(5 * PAGE), PAGE, Advice::LinuxDontNeed) }.unwrap(),
            |at| {
                let elsewhere = map(std::ptr::null_mut(), LEN, MapFlags::PRIVATE);
                // SAFETY: from the test's own mapping to another, to which nothing refers.
                unmap(unsafe { mremap_fixed(at, LEN, LEN, MremapFlags::MAYMOVE, elsewhere) }.unwrap(), LEN);
                map(at, LEN, MapFlags::PRIVATE);
            },
            |at| {
                // SAFETY: the test's own mapping, to which nothing refers.
                unmap(unsafe { mremap(at, LEN, 64 * LEN, MremapFlags::MAYMOVE) }.unwrap(), 64 * LEN);
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let at = map(std::ptr::null_mut(), LEN, MapFlags::PRIVATE);
            // SAFETY: the test's own mapping.
            unsafe { at.cast::<u8>().write_bytes(7, LEN) };
            let covered = watch.cover(range(at, LEN)).expect("anonymous memory can be watched");
            assert!(covered.still());
            // SAFETY: as above.
            unsafe { at.cast::<u8>().write_bytes(8, LEN) };
            assert!(covered.still(), "writing changes nothing");
            change(at);
            assert!(!covered.still(), "change {number}");
        }
    }

    #[test]
    fn only_private_memory_is_watched() {
        let Some(watch) = watch() else { return };
        let shared = map(std::ptr::null_mut(), LEN, MapFlags::SHARED);
        assert!(watch.cover(range(shared, LEN)).is_none());
        assert!(watch.cover(0x1000..0x2000).is_none(), "nothing lies there");
        unmap(shared, LEN);
    }

    #[test]
    fn of_ranges_that_overlap_the_last_counts() {
        let Some(watch) = watch() else { return };
        let at = map(std::ptr::null_mut(), 3 * LEN, MapFlags::PRIVATE);
        let first = watch.cover(range(at, 2 * LEN)).unwrap();
        let second = watch.cover(range(at.wrapping_byte_add(LEN), 2 * LEN)).unwrap();
        let beside = watch.cover(range(at, LEN)).unwrap();
        assert!(!first.still() && second.still() && beside.still());
        second.release();
        assert!(beside.still());
        unmap(at, 3 * LEN);
        assert!(!beside.still());
    }

    /// Allocators discard and unmap while other threads ask: nobody waits for ever, and what was discarded is never
    /// taken for what was there. That nothing can be known while others discard all the time is no error.
    #[test]
    fn discarding_and_asking_at_once() {
        let Some(watch) = watch() else { return };
        let known = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let at = map(std::ptr::null_mut(), LEN, MapFlags::PRIVATE);
                        let covered = watch.cover(range(at, LEN));
                        known.fetch_add(covered.as_ref().is_some_and(Covered::still).into(), Ordering::Relaxed);
                        // SAFETY: the test's own mapping.
                        unsafe { madvise(at, LEN, Advice::LinuxDontNeed) }.unwrap();
                        assert!(!covered.is_some_and(|covered| covered.still()));
                        unmap(at, LEN);
                    }
                });
            }
        });
        assert_ne!(known.into_inner(), 0);
    }

    /// As the end of the thread does, and that of the watch, whose own memory may lie in what is watched.
    #[test]
    fn memory_may_be_given_back_while_the_watch_ends() {
        let Some(watch) = watch() else { return };
        let at = map(std::ptr::null_mut(), LEN, MapFlags::PRIVATE) as usize;
        let covered = watch.cover(at..at + LEN).unwrap();
        rustix::io::write(&watch.bell, &1_u64.to_ne_bytes()).unwrap();
        watch.thread.lock().take().unwrap().join().unwrap();
        let (done, waits) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // SAFETY: the test's own mapping, to which nothing refers.
            unsafe { madvise(at as *mut c_void, LEN, Advice::LinuxDontNeed) }.unwrap();
            done.send(()).unwrap();
        });
        waits.recv_timeout(std::time::Duration::from_secs(60)).expect("nobody would have read of it");
        // The thread has closed what it would close.
        std::mem::forget((covered, watch));
    }

    #[test]
    fn there_is_an_end_to_what_is_watched() {
        let Some(watch) = watch() else { return };
        let at = map(std::ptr::null_mut(), (RANGES + 1) * 2 * PAGE, MapFlags::PRIVATE);
        let place = |index: usize| range(at.wrapping_byte_add(index * 2 * PAGE), PAGE);
        let mut covered: Vec<_> = (0..RANGES + 1).map_while(|index| watch.cover(place(index))).collect();
        assert!(covered.len() <= RANGES && watch.cover(place(RANGES)).is_none());
        covered.pop().unwrap().release();
        assert!(watch.cover(place(RANGES)).is_some());
        drop(covered);
        unmap(at, (RANGES + 1) * 2 * PAGE);
    }
}
