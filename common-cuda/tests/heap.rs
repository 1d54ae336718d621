//! The heap is recognised without a call that may move its end.

mod common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway_common_cuda::MemoryClass;
use common::{app, devices, isolated};

/// Calls of `sbrk` by anything but the allocator.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Stands in for the C library's function, as UCX's memory hooks do.
#[unsafe(no_mangle)]
extern "C" fn sbrk(_increment: isize) -> *mut c_void {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // What the function returns if it fails.
    std::ptr::without_provenance_mut(usize::MAX)
}

#[test]
fn the_break_is_never_asked_for() {
    isolated("the_break_is_never_asked_for", &[], || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let heap = maps.lines().find(|line| line.ends_with("[heap]")).expect("a program has a heap");
        let (start, _) = heap.split_once('-').unwrap();
        let start = usize::from_str_radix(start, 16).unwrap();
        let devices = devices();
        let asked = || [c"cuPointerGetAttribute", c"cuPointerGetAttributes"].map(|name| app().calls(name));
        let before = asked();
        assert_eq!(devices.classify(std::ptr::without_provenance(start), 8).class, MemoryClass::Host);
        assert_eq!(asked(), before, "the heap needs no driver call");
        assert_eq!(CALLS.load(Ordering::Relaxed), 0);
    });
}
