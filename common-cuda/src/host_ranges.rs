//! Host memory that is recognised without a driver call.
//!
//! A driver takes 0.2 us or more to classify a pointer, as long as a whole small message. A remembered answer becomes
//! wrong when the pages are unmapped and the driver maps device memory there. So nothing is remembered by default. The
//! present state of the process shows that these are host memory:
//! - the part of the calling thread's stack that is in use,
//! - the heap from its beginning to the present break,
//! - the main program's static data.
//!
//! Such memory may be registered with a driver. Then it is [`Pinned`](crate::MemoryClass::Pinned), not host memory.
//! Small messages treat both alike. Larger buffers always cause a driver call.
//!
//! If every unmapping is reported (Open MPI's memory hooks), answers are remembered as well, separately for each
//! thread: without locks, and a report only increments a counter.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Larger buffers cause a driver call unless remembered. The call recognises pinned memory, and its time is negligible
/// for them.
const SMALL: usize = 16 << 10;

/// The smallest page size. All bytes of a page are host memory if one of them is.
const PAGE: usize = 4096;

/// Checks whether the bytes are certainly host memory.
#[inline]
pub(crate) fn certain(address: usize, len: usize) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    (len < SMALL && (on_stack(address, end) || in_heap_or_statics(address, end)))
        || (REMEMBERING.load(Ordering::Relaxed) && RECENT.with(|recent| recent.holds(address, end)))
}

fn on_stack(address: usize, end: usize) -> bool {
    thread_local! {
        /// One variable, because a library needs a call for each access to a thread-local variable.
        static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }
    let here = (&raw const address) as usize;
    let (mut bottom, mut top) = BOUNDS.get();
    if top == 0 {
        (bottom, top) = stack_bounds();
        BOUNDS.set((bottom, top));
    }
    // A coroutine has another stack. `here` is then outside of this thread's stack, and nothing is certain.
    (bottom..top).contains(&here) && here <= address && end <= top
}

/// The calling thread's stack. Unknown stacks are empty ranges at the top of memory.
fn stack_bounds() -> (usize, usize) {
    const UNKNOWN: (usize, usize) = (usize::MAX, usize::MAX);
    // SAFETY: an all-zero attribute object is storage for the next call to fill.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills in the attributes of the calling thread.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) } != 0 {
        return UNKNOWN;
    }
    let mut bottom = std::ptr::null_mut();
    let mut len = 0;
    // SAFETY: reads from the attributes that were filled in above.
    let known = unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut bottom, &raw mut len) } == 0;
    // SAFETY: initialised above, destroyed once.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    if known { (bottom as usize, bottom as usize + len) } else { UNKNOWN }
}

fn in_heap_or_statics(address: usize, end: usize) -> bool {
    let fixed = fixed();
    if fixed.statics.0 <= address && end <= fixed.statics.1 {
        return true;
    }
    // SAFETY: an increment of 0 only reads the break.
    fixed.heap <= address && end <= unsafe { libc::sbrk(0) } as usize
}

/// Addresses that never change in a process.
struct Fixed {
    /// The main program's writable segment, which is never unmapped.
    statics: (usize, usize),
    /// The heap's first address; `usize::MAX` if it is not known.
    heap: usize,
}

fn fixed() -> &'static Fixed {
    static FIXED: OnceLock<Fixed> = OnceLock::new();
    FIXED.get_or_init(|| Fixed { statics: main_program_statics(), heap: heap_start().unwrap_or(usize::MAX) })
}

fn heap_start() -> Option<usize> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // proc(5): field 3 follows the name, which is in parentheses and may contain anything. start_brk is field 47.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(47 - 3)?.parse().ok().filter(|&start| start != 0)
}

fn main_program_statics() -> (usize, usize) {
    extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the loader passes its own record, and `found` is the pair below.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<(usize, usize)>()) };
        for index in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the loader's table has `dlpi_phnum` entries.
            let header = unsafe { &*info.dlpi_phdr.add(index) };
            if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0 {
                let start = info.dlpi_addr as usize + header.p_vaddr as usize;
                *found = (start, start + header.p_memsz as usize);
            }
        }
        // The main program comes first. The others are not needed.
        1
    }
    let mut found = (0_usize, 0_usize);
    // SAFETY: the callback matches, and its data outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut found).cast()) };
    found
}

/// Set once every unmapping is reported.
static REMEMBERING: AtomicBool = AtomicBool::new(false);
/// Counts reports that may concern remembered ranges. Ranges remembered before the last report are not valid.
static EPOCH: AtomicU64 = AtomicU64::new(1);
/// The bounds of everything that was ever remembered.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static RECENT: Recent = const { Recent::none() };
}

/// A thread's latest host ranges.
struct Recent {
    epoch: Cell<u64>,
    oldest: Cell<usize>,
    ranges: [Cell<(usize, usize)>; 8],
}

impl Recent {
    const fn none() -> Recent {
        Recent { epoch: Cell::new(0), oldest: Cell::new(0), ranges: [const { Cell::new((0, 0)) }; 8] }
    }

    fn holds(&self, address: usize, end: usize) -> bool {
        self.epoch.get() == EPOCH.load(Ordering::Acquire)
            && self.ranges.iter().map(Cell::get).any(|(first, last)| first <= address && end <= last)
    }

    fn add(&self, epoch: u64, address: usize, end: usize) {
        if self.epoch.get() != epoch {
            self.ranges.iter().for_each(|range| range.set((0, 0)));
            self.epoch.set(epoch);
        }
        let slot = self.oldest.get();
        self.ranges[slot].set((address, end));
        self.oldest.set((slot + 1) % self.ranges.len());
    }
}

/// Begins to remember.
pub(crate) fn begin_remembering() {
    REMEMBERING.store(true, Ordering::Relaxed);
}

/// A query of the driver that is in progress. Begin it before the driver call, so that an answer is not remembered if
/// an unmapping happens meanwhile.
pub(crate) struct HostQuery {
    epoch: u64,
}

impl HostQuery {
    pub(crate) fn begin() -> Self {
        HostQuery { epoch: EPOCH.load(Ordering::Acquire) }
    }

    /// Remembers that the bytes, all of them in use by the caller, are host memory.
    pub(crate) fn found_host(self, address: usize, len: usize) {
        let Some(end) = address.checked_add(len).filter(|_| REMEMBERING.load(Ordering::Relaxed)) else { return };
        let (address, end) = (address & !(PAGE - 1), end.next_multiple_of(PAGE));
        // Widen the bounds before remembering, so that a later report finds the range within them.
        LOWEST.fetch_min(address, Ordering::SeqCst);
        HIGHEST.fetch_max(end, Ordering::SeqCst);
        RECENT.with(|recent| recent.add(self.epoch, address, end));
    }
}

/// Reports that pages are about to be unmapped. Allocates nothing and takes no lock.
pub(crate) fn forget(address: usize, len: usize) {
    let end = address.saturating_add(len);
    if address < HIGHEST.load(Ordering::SeqCst) && LOWEST.load(Ordering::SeqCst) < end {
        EPOCH.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable in the writable part of the executable.
    static STATIC: [std::sync::atomic::AtomicU64; 8] = [const { std::sync::atomic::AtomicU64::new(0) }; 8];

    #[test]
    fn stack_heap_and_statics_are_certain() {
        let local = [0_u8; 100];
        assert!(certain((&raw const local) as usize, 100));
        assert!(certain((&raw const STATIC) as usize, 64));
        std::thread::spawn(|| {
            let local = [0_u8; 100];
            assert!(certain((&raw const local) as usize, 100));
            // Memory beyond the frames in use belongs to no caller.
            assert!(!certain((&raw const local) as usize - (64 << 10), 100));
        })
        .join()
        .unwrap();
        // SAFETY: reads the break.
        let end = unsafe { libc::sbrk(0) } as usize;
        let start = heap_start().unwrap();
        assert!(start <= end);
        if start < end {
            assert!(certain(start, 1));
            assert!(!certain(end, 1));
        }
    }

    #[test]
    fn mappings_and_large_buffers_are_not() {
        // SAFETY: a new mapping, unmapped below.
        let mapping = unsafe {
            libc::mmap(std::ptr::null_mut(), 1 << 20, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(mapping, libc::MAP_FAILED);
        assert!(!certain(mapping as usize, 8));
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(mapping, 1 << 20) };
        assert!(!certain((&raw const STATIC) as usize, SMALL));
        assert!(!certain(usize::MAX - 3, 8));
    }

    #[test]
    fn unmapped_pages_are_forgotten() {
        let (address, len) = (0x10_0000_0800, 0x2000);
        HostQuery::begin().found_host(address, len);
        assert!(!certain(address, len), "nothing is remembered before it is asked for");
        begin_remembering();
        HostQuery::begin().found_host(address, len);
        assert!(certain(address, len));
        assert!(certain(address - 0x800, 1), "whole pages are");
        assert!(!certain(address + len, 0x1000));
        std::thread::spawn(move || assert!(!certain(address, len), "each thread has its own")).join().unwrap();
        forget(address + 0x2000, 1);
        assert!(!certain(address, len));
        let query = HostQuery::begin();
        forget(address, len);
        query.found_host(address, len);
        assert!(!certain(address, len), "an answer that an unmapping overtook");
    }
}
