//! Host memory that is recognised without a driver call.
//!
//! A driver takes 0.2 us or more to classify a pointer, as long as a whole small message. A remembered answer becomes
//! wrong when the pages are unmapped and the driver maps device memory there, so nothing is remembered. The present state
//! of the process shows that these are host memory:
//! - the part of the calling thread's stack that is in use,
//! - the heap from its beginning to the present break,
//! - the main program's static data.
//!
//! Such memory may be registered with a driver. Then it is [`Pinned`](crate::MemoryClass::Pinned), not host memory.
//! Small messages treat both alike. Larger buffers always cause a driver call.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Larger buffers cause a driver call. The call recognises pinned memory, and its time is negligible for them.
const SMALL: usize = 16 << 10;

/// Checks whether the bytes are certainly host memory and [few](is_small).
#[inline]
pub(crate) fn certain(address: usize, len: usize) -> bool {
    is_small(len) && contain(address, len)
}

/// Checks whether the bytes are so few that it does not matter whether they are pinned.
#[inline]
pub(crate) fn is_small(len: usize) -> bool {
    len < SMALL
}

/// Checks whether the bytes are certainly host memory, pinned or not.
#[inline]
pub(crate) fn contain(address: usize, len: usize) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    on_stack(address, end) || in_heap_or_statics(address, end)
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
    fixed.heap.as_ref().is_some_and(|heap| heap.start <= address && end <= heap.end.load(Ordering::Relaxed))
}

/// Addresses that never change in a process.
struct Fixed {
    /// The main program's writable segment, which is never unmapped.
    statics: (usize, usize),
    /// `None` if the C library does not say where the heap ends.
    heap: Option<Heap>,
}

struct Heap {
    start: usize,
    /// The present break, which the allocator moves.
    end: &'static AtomicUsize,
}

fn fixed() -> &'static Fixed {
    static FIXED: OnceLock<Fixed> = OnceLock::new();
    FIXED.get_or_init(|| Fixed { statics: main_program_statics(), heap: heap() })
}

fn heap() -> Option<Heap> {
    Some(Heap { start: heap_start()?, end: present_break()? })
}

/// Finds glibc's own variable. `sbrk(0)` would return its value, but where UCX's memory hooks are installed, that sets the
/// break to the value it has just read. If another thread's allocation moves the break in between, the heap is cut off.
fn present_break() -> Option<&'static AtomicUsize> {
    // SAFETY: the name is a C string.
    let variable = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__curbrk".as_ptr()) };
    // SAFETY: an aligned word of the C library, which is never unloaded. Threads write it with single stores.
    unsafe { variable.cast::<AtomicUsize>().as_ref() }
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
        // Pinned or not, a large buffer there is host memory.
        let large = [0_u8; SMALL];
        let large = std::hint::black_box(&raw const large) as usize;
        assert!(contain(large, SMALL) && !certain(large, SMALL));
        std::thread::spawn(|| {
            let local = [0_u8; 100];
            assert!(certain((&raw const local) as usize, 100));
            // Memory beyond the frames in use belongs to no caller.
            assert!(!certain((&raw const local) as usize - (64 << 10), 100));
        })
        .join()
        .unwrap();
        let Heap { start, end } = heap().unwrap();
        let end = end.load(Ordering::Relaxed);
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
        assert!(!contain(mapping as usize, 8));
        assert!(!certain((&raw const STATIC) as usize, SMALL));
        assert!(!contain((&raw const STATIC) as usize, 1 << 30));
        assert!(!certain(usize::MAX - 3, 8));
    }
}
