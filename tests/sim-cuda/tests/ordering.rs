//! The work that is complete when a call returns, and the order of the rest.
//!
//! On a real driver stale data is possible, but not certain. So only the simulated driver must show it. On both drivers
//! an ordered program must never see stale data.

mod common;

use common::{Session, in_child, is_simulated, pattern};

/// Slow enough that late work is detected.
const SLOW: &[(&str, &str)] = &[("SIM_CUDA_DELAY_US", "3000")];

/// Returns the content of `address` as a copy in a non-blocking stream without any order finds it.
fn glance(address: u64, host: &mut [u8], stream: usize) {
    ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr(), address, host.len(), stream));
    ok!(cuStreamSynchronize(stream));
}

/// Returns whether an unordered stream once found `fill`, which writes `bytes` to the address, incomplete. Asserts that
/// an ordered stream always finds it complete.
fn is_ever_late(bytes: &[u8], fill: impl Fn(&Session, u64)) -> bool {
    let session = Session::begin();
    let (address, stream, event) = (session.alloc(bytes.len()), session.stream(1), session.event());
    let seen = session.pinned(bytes.len());
    let mut late = false;
    for _ in 0..20 {
        ok!(cuMemsetD8_v2(address, 0xEE_u32, bytes.len()));
        ok!(cuCtxSynchronize());
        fill(&session, address);
        glance(address, seen, stream);
        late |= seen != bytes;
        ok!(cuEventRecord(event, 0_usize));
        ok!(cuStreamWaitEvent(stream, event, 0_u32));
        glance(address, seen, stream);
        assert!(seen == bytes, "ordered after the legacy default stream, and stale");
    }
    ok!(cuMemFree_v2(address));
    late
}

#[test]
fn a_copy_from_pageable_memory_lands_after_its_return() {
    in_child("a_copy_from_pageable_memory_lands_after_its_return", SLOW, || {
        let bytes = pattern(64 << 10, 4);
        let late = is_ever_late(&bytes, |_, address| {
            // The source may change as soon as the call returns.
            let mut source = bytes.clone();
            ok!(cuMemcpyHtoD_v2(address, source.as_ptr(), source.len()));
            source.fill(0);
        });
        assert!(late || !is_simulated());
    });
}

#[test]
fn the_end_of_a_large_copy_from_pageable_memory_lands_after_its_return() {
    in_child("the_end_of_a_large_copy_from_pageable_memory_lands_after_its_return", SLOW, || {
        let bytes = pattern(5 << 20, 4);
        let late = is_ever_late(&bytes, |_, address| {
            let mut source = bytes.clone();
            ok!(cuMemcpyHtoD_v2(address, source.as_ptr(), source.len()));
            source.fill(0);
        });
        assert!(late || !is_simulated());
    });
}

#[test]
fn a_memset_is_done_after_its_return() {
    in_child("a_memset_is_done_after_its_return", SLOW, || {
        let bytes = vec![3_u8; 1 << 20];
        let late = is_ever_late(&bytes, |_, address| ok!(cuMemsetD8_v2(address, 3_u32, 1_usize << 20)));
        assert!(late || !is_simulated());
    });
}

#[test]
fn a_copy_within_the_device_is_done_after_its_return() {
    in_child("a_copy_within_the_device_is_done_after_its_return", SLOW, || {
        let bytes = pattern(1 << 20, 8);
        let session = Session::begin();
        let source = session.alloc(bytes.len());
        session.write(source, &bytes);
        let late = is_ever_late(&bytes, |_, address| ok!(cuMemcpyDtoD_v2(address, source, 1_usize << 20)));
        assert!(late || !is_simulated());
    });
}

#[test]
fn a_copy_from_pinned_memory_is_done() {
    in_child("a_copy_from_pinned_memory_is_done", SLOW, || {
        let bytes = pattern(64 << 10, 4);
        let late = is_ever_late(&bytes, |session, address| {
            let source = session.pinned(64 << 10);
            source.copy_from_slice(&bytes);
            ok!(cuMemcpyHtoD_v2(address, source.as_ptr(), source.len()));
            ok!(cuMemFreeHost(source.as_mut_ptr()));
        });
        assert!(!late);
    });
}

#[test]
fn sync_memops_makes_copies_be_done() {
    in_child("sync_memops_makes_copies_be_done", SLOW, || {
        let bytes = pattern(64 << 10, 4);
        let late = is_ever_late(&bytes, |_, address| {
            let one = 1_u32;
            ok!(cuPointerSetAttribute(&raw const one, 6, address));
            ok!(cuMemcpyHtoD_v2(address, bytes.as_ptr(), bytes.len()));
        });
        assert!(!late);
    });
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    in_child("the_legacy_stream_and_blocking_streams_wait_for_each_other", SLOW, || {
        let session = Session::begin();
        let (a, b) = (session.alloc(1 << 16), session.alloc(1 << 16));
        let blocking = session.stream(0);
        let seen = session.pinned(1 << 16);
        for round in 1..10_u8 {
            ok!(cuMemsetD8Async(a, u32::from(round), 1_usize << 16, blocking));
            ok!(cuMemcpyDtoDAsync_v2(b, a, 1_usize << 16, 0_usize));
            ok!(cuMemcpyDtoHAsync_v2(seen.as_mut_ptr(), b, 1_usize << 16, blocking));
            ok!(cuStreamSynchronize(blocking));
            assert!(seen.iter().all(|byte| *byte == round));
        }
        ok!(cuMemsetD8Async(a, 99_u32, 1_usize << 16, blocking));
        ok!(cuStreamSynchronize(0_usize));
        ok!(cuStreamQuery(blocking));
    });
}

#[test]
fn events_and_pinned_copies_complete_late() {
    in_child("events_and_pinned_copies_complete_late", SLOW, || {
        let session = Session::begin();
        let (address, stream, event) = (session.alloc(4096), session.stream(1), session.event());
        session.write(address, &[7; 4096]);
        let host = session.pinned(4096);
        let mut pending = false;
        for _ in 0..20 {
            host.fill(0);
            ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr(), address, 4096_usize, stream));
            ok!(cuEventRecord(event, stream));
            pending |= cu!(cuEventQuery(event)) == 600 && cu!(cuStreamQuery(stream)) == 600;
            ok!(cuEventSynchronize(event));
            assert!(host.iter().all(|byte| *byte == 7), "the event came before its work");
        }
        assert!(pending || !is_simulated());
    });
}

#[test]
fn streams_run_in_a_different_order_than_submitted() {
    in_child("streams_run_in_a_different_order_than_submitted", SLOW, || {
        if !is_simulated() {
            println!("skipped: a real driver may, but need not");
            return;
        }
        let session = Session::begin();
        let (first, second) = (session.stream(1), session.stream(1));
        let (early, late) = (session.event(), session.event());
        let mut overtaken = false;
        for _ in 0..40 {
            ok!(cuEventRecord(early, first));
            ok!(cuEventRecord(late, second));
            while cu!(cuEventQuery(late)) == 600 {}
            overtaken |= cu!(cuEventQuery(early)) == 600;
            ok!(cuCtxSynchronize());
        }
        assert!(overtaken);
    });
}
