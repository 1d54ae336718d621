//! An engine that is dropped leaves nothing behind. A binary of its own, since it counts what the process allocates.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::Flags;
use cableway_pml::SendMode;

use common::{Link, Ranks, pattern};

/// The system's allocator, with a count of the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is the system allocator's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(address, layout) }
    }
}

/// Messages of every protocol in both directions, some of which nobody receives.
fn a_job() {
    let link = Link::new("net", Flags::GET | Flags::PUT).with(|link| link.retains = true);
    let ranks = Ranks::new(3, &[link]);
    for len in [0, 8, 5000, 300_000] {
        ranks.carry(len, 1);
    }
    for (from, len) in [(0, 8), (1, 2000)] {
        let unexpected = pattern(len, 1);
        let sending = ranks.isend(from, 2, 7, &unexpected, &SendMode::Standard);
        ranks.settle();
        assert!(sending.is_complete());
    }
    ranks.finalize();
}

#[test]
fn nothing_stays_behind() {
    a_job();
    let before = ALLOCATED.load(Ordering::Relaxed);
    for _ in 0..10 {
        a_job();
    }
    let after = ALLOCATED.load(Ordering::Relaxed);
    assert!(after <= before + 1000, "{} bytes stay behind each time", (after - before) / 10);
}
