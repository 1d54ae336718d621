//! A dropped engine frees its memory. This is a separate binary because it counts the process's allocations.

mod common;

use cableway_btl::Flags;
use cableway_pml::SendMode;
use test_nodes::Counting;

use common::active::{Active, Received, keeper};
use common::{Link, Ranks, pattern};

#[global_allocator]
static ALLOCATED: Counting = Counting::new();

/// Sends messages of every protocol in both directions, some of which are never received.
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

/// Posts active messages that are received, dropped, unknown, or still wait at the end.
fn active_messages() {
    let active = Active::new(2, &[Link::new("net", Flags::GET)], &[("pml_unexpected_limit", "4K")]);
    let received = Received::default();
    active.am[1].register(1, keeper(&received)).unwrap();
    active.am[1].register(2, |_| {}).unwrap();
    for id in [1, 2, 3] {
        for len in [0, 8, 8000, 300_000] {
            active.post(0, 1, id, b"header", pattern(len, 1)).unwrap();
            active.post(1, 0, id, b"nobody has registered a handler there", pattern(len, 1)).unwrap();
        }
    }
    active.until(|| received.lock().len() == 4 && active.am[0].poster().pending() == 0);
    active.ranks.settle();
    for am in &active.am {
        am.close();
    }
    active.ranks.finalize();
}

#[test]
fn a_dropped_engine_frees_its_memory() {
    a_job();
    active_messages();
    let before = ALLOCATED.bytes();
    for _ in 0..10 {
        a_job();
        active_messages();
    }
    let after = ALLOCATED.bytes();
    assert!(after <= before + 1000, "each run leaks {} bytes", (after - before) / 10);
}
