use std::ffi::c_void;

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, mremap_fixed, munmap};

use super::*;

const LEN: usize = 16 * PAGE;

/// Opens a watch for one test, so that tests do not take each other's ranges. Returns `None` if this machine denies it.
fn watch() -> Option<Arc<Watch>> {
    Watch::start().inspect_err(|error| println!("skipped: no userfaultfd: {error}")).ok()
}

fn map(at: *mut c_void, len: usize, flags: MapFlags) -> *mut c_void {
    let flags = if at.is_null() { flags } else { flags | MapFlags::FIXED };
    // SAFETY: at an address that the kernel chooses, or in place of a mapping of the test.
    unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap()
}

fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: a mapping of the test without references.
    unsafe { munmap(at, len) }.unwrap();
}

fn range(address: *mut c_void, len: usize) -> Range<usize> {
    address as usize..address as usize + len
}

#[test]
fn replaced_memory_is_detected() {
    let Some(watch) = watch() else { return };
    let changes: [fn(*mut c_void); 6] = [
        |at| unmap(at, LEN),
        |at| _ = map(at, LEN, MapFlags::PRIVATE),
        |at| _ = map(at.wrapping_byte_add(LEN - PAGE), PAGE, MapFlags::PRIVATE),
        // SAFETY: a page of the test without references.
        |at| unsafe { madvise(at.wrapping_byte_add(5 * PAGE), PAGE, Advice::LinuxDontNeed) }.unwrap(),
        |at| {
            let elsewhere = map(std::ptr::null_mut(), LEN, MapFlags::PRIVATE);
            // SAFETY: moves a mapping of the test to another without references.
            unmap(unsafe { mremap_fixed(at, LEN, LEN, MremapFlags::MAYMOVE, elsewhere) }.unwrap(), LEN);
            map(at, LEN, MapFlags::PRIVATE);
        },
        |at| {
            // SAFETY: a mapping of the test without references.
            unmap(unsafe { mremap(at, LEN, 64 * LEN, MremapFlags::MAYMOVE) }.unwrap(), 64 * LEN);
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let at = map(std::ptr::null_mut(), LEN, MapFlags::PRIVATE);
        // SAFETY: a mapping of the test.
        unsafe { at.cast::<u8>().write_bytes(7, LEN) };
        let covered = watch.cover(range(at, LEN)).expect("anonymous memory can be watched");
        assert!(covered.still());
        // SAFETY: as above.
        unsafe { at.cast::<u8>().write_bytes(8, LEN) };
        assert!(covered.still(), "a write is not a change");
        change(at);
        assert!(!covered.still(), "change {number}");
    }
}

#[test]
fn only_private_memory_is_watched() {
    let Some(watch) = watch() else { return };
    let shared = map(std::ptr::null_mut(), LEN, MapFlags::SHARED);
    assert!(watch.cover(range(shared, LEN)).is_none());
    assert!(watch.cover(0x1000..0x2000).is_none(), "no memory is mapped there");
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

/// Allocators discard and unmap memory while other threads check it. No thread waits for ever, and discarded memory
/// never counts as unchanged. A check may fail while other threads discard all the time.
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
                    // SAFETY: a mapping of the test.
                    unsafe { madvise(at, LEN, Advice::LinuxDontNeed) }.unwrap();
                    assert!(!covered.is_some_and(|covered| covered.still()));
                    unmap(at, LEN);
                }
            });
        }
    });
    assert_ne!(known.into_inner(), 0);
}

/// The end of the thread and of the watch frees memory, which may lie in a watched range.
#[test]
fn memory_may_be_given_back_while_the_watch_ends() {
    let Some(watch) = watch() else { return };
    let at = map(std::ptr::null_mut(), LEN, MapFlags::PRIVATE) as usize;
    let covered = watch.cover(at..at + LEN).unwrap();
    rustix::io::write(&watch.wakeup, &1_u64.to_ne_bytes()).unwrap();
    watch.thread.lock().take().unwrap().join().unwrap();
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: a mapping of the test without references.
        unsafe { madvise(at as *mut c_void, LEN, Advice::LinuxDontNeed) }.unwrap();
        done.send(()).unwrap();
    });
    waits.recv_timeout(std::time::Duration::from_secs(60)).expect("the thread must not wait for a reader");
    // The thread has closed what it would close.
    std::mem::forget((covered, watch));
}

#[test]
fn the_number_of_watched_ranges_is_limited() {
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
