//! Whether a copy sees the data of the program's preceding copy, and what each method to ensure that costs.

use std::ffi::c_void;
use std::time::Instant;

use crate::app::{App, Handle, LEGACY_STREAM, NON_BLOCKING_STREAM, SYNC_MEMOPS};
use crate::{Bench, fact};

const TRIALS: u32 = 2000;

/// How the copy is ordered after the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    /// An event in the legacy stream.
    Event,
    /// An event, unless a query finds the legacy stream idle.
    QueryThenEvent,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`, set once on the allocation.
    SyncMemops,
}

/// The program's preceding operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    PageableCopy,
    PageableCopyPerThreadStream,
    Memset,
}

pub(crate) fn run(bench: &Bench) {
    for before in [Before::PageableCopy, Before::PageableCopyPerThreadStream, Before::Memset] {
        if before == Before::PageableCopyPerThreadStream && !bench.app.has_per_thread_streams() {
            fact("per-thread default streams", "the driver has no variants for them");
            continue;
        }
        for len in [256, 64 << 10, 1 << 20] {
            for way in [Way::Nothing, Way::Event, Way::QueryThenEvent, Way::SyncMemops] {
                trials(&bench.app, before, way, len);
            }
        }
    }
}

fn trials(app: &App, before: Before, way: Way, len: usize) {
    let address = app.malloc(len);
    if way == Way::SyncMemops {
        let on = 1_u32;
        app.cuPointerSetAttribute((&raw const on).cast(), SYNC_MEMOPS, address).unwrap();
    }
    let (stream, event) = (app.stream(NON_BLOCKING_STREAM), app.event());
    let mut pinned: *mut c_void = std::ptr::null_mut();
    app.cuMemHostAlloc(&raw mut pinned, len, 1).unwrap();
    let mut pageable = vec![0_u8; len];
    let mut stale = 0;
    let mut spent = 0.0;
    for trial in 1..=TRIALS {
        // Every byte differs from that of the previous trial.
        let byte = (trial % 251) as u8;
        match before {
            Before::PageableCopy => {
                pageable.fill(byte);
                app.upload(address, &pageable);
            }
            Before::PageableCopyPerThreadStream => {
                pageable.fill(byte);
                app.cuMemcpyHtoD_ptds(address, pageable.as_ptr().cast(), len).unwrap();
            }
            Before::Memset => app.cuMemsetD8(address, byte, len).unwrap(),
        }
        let start = Instant::now();
        order(app, way, event, stream);
        app.cuMemcpyAsync(pinned as u64, address, len, stream).unwrap();
        spent += start.elapsed().as_secs_f64();
        app.cuStreamSynchronize(stream).unwrap();
        // SAFETY: `len` bytes allocated above, which the copy has filled.
        let got = unsafe { std::slice::from_raw_parts(pinned.cast::<u8>(), len) };
        stale += u32::from(got.iter().any(|&got| got != byte));
        app.cuCtxSynchronize().unwrap();
    }
    fact(
        &format!("{before:?} of {len} bytes, {way:?}: stale of {TRIALS} / cost of order and issue"),
        format_args!("{stale} / {:.2} us", spent * 1e6 / f64::from(TRIALS)),
    );
    app.cuEventDestroy(event).unwrap();
    app.cuStreamDestroy(stream).unwrap();
    app.cuMemFreeHost(pinned).unwrap();
    app.cuMemFree(address).unwrap();
}

fn order(app: &App, way: Way, event: Handle, stream: Handle) {
    let wait = match way {
        Way::Nothing | Way::SyncMemops => false,
        Way::Event => true,
        Way::QueryThenEvent => app.cuStreamQuery(LEGACY_STREAM).is_err(),
    };
    if wait {
        app.cuEventRecord(event, LEGACY_STREAM).unwrap();
        app.cuStreamWaitEvent(stream, event, 0).unwrap();
    }
}
