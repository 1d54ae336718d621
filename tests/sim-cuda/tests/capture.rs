//! The calls that a stream capture forbids, as driver 580 behaves on an H200.

mod common;

use common::{Session, in_child};

const GLOBAL: i32 = 0;
const RELAXED: i32 = 2;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

fn status(stream: usize) -> u32 {
    let mut status = 9_u32;
    ok!(cuStreamIsCapturing(stream, &raw mut status));
    status
}

fn end(stream: usize) -> i32 {
    let mut graph = 0_usize;
    let result = cu!(cuStreamEndCapture(stream, &raw mut graph));
    if result == 0 {
        ok!(cuGraphDestroy(graph));
    }
    result
}

/// Runs `call` in another thread during a capture in global mode. Returns its result, and that of the capture's end.
fn elsewhere(session: &Session, flags: u32, relaxed: bool, call: impl Fn() -> i32 + Sync) -> (i32, i32) {
    let stream = session.stream(flags);
    ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
    let result = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            ok!(cuCtxSetCurrent(session.context));
            let mut mode = if relaxed { RELAXED } else { GLOBAL };
            ok!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
            call()
        });
        thread.join().expect("the call does not panic")
    });
    let ended = end(stream);
    ok!(cuStreamDestroy_v2(stream));
    (result, ended)
}

#[test]
fn unsafe_calls_invalidate_a_capture_elsewhere_unless_relaxed() {
    in_child("unsafe_calls_invalidate_a_capture_elsewhere_unless_relaxed", &[], || {
        let session = Session::begin();
        let (stream, event) = (session.stream(1), session.event());
        ok!(cuEventRecord(event, stream));
        ok!(cuCtxSynchronize());
        let allocate = || {
            let mut address = 0_u64;
            let result = cu!(cuMemAlloc_v2(&raw mut address, 4096_usize));
            if result == 0 {
                ok!(cuMemFree_v2(address));
            }
            result
        };
        let pinned = || {
            let mut address = 0_usize;
            let result = cu!(cuMemHostAlloc(&raw mut address, 4096_usize, 1_u32));
            if result == 0 {
                ok!(cuMemFreeHost(address));
            }
            result
        };
        let calls: [&(dyn Fn() -> i32 + Sync); 6] = [
            &allocate,
            &pinned,
            &|| cu!(cuEventQuery(event)),
            &|| cu!(cuEventSynchronize(event)),
            &|| cu!(cuStreamQuery(stream)),
            &|| cu!(cuStreamSynchronize(stream)),
        ];
        for (index, call) in calls.into_iter().enumerate() {
            assert_eq!(elsewhere(&session, 1, false, call), (900, 901), "call {index}");
            assert_eq!(elsewhere(&session, 1, true, call), (0, 0), "call {index}, relaxed");
        }
    });
}

#[test]
fn copies_and_queries_of_pointers_are_safe() {
    in_child("copies_and_queries_of_pointers_are_safe", &[], || {
        let session = Session::begin();
        let (stream, event, address) = (session.stream(1), session.event(), session.alloc(4096));
        let pinned = session.pinned(64).as_mut_ptr() as usize;
        let kind = || {
            let mut kind = 0_u32;
            cu!(cuPointerGetAttribute(&raw mut kind, 2, address))
        };
        let calls: [&(dyn Fn() -> i32 + Sync); 4] = [
            &kind,
            &|| cu!(cuMemcpyHtoDAsync_v2(address, pinned, 64_usize, stream)),
            &|| cu!(cuEventRecord(event, stream)),
            &|| cu!(cuStreamWaitEvent(stream, event, 0_u32)),
        ];
        for (index, call) in calls.into_iter().enumerate() {
            assert_eq!(elsewhere(&session, 1, false, call), (0, 0), "call {index}");
        }
    });
}

#[test]
fn the_legacy_stream_invalidates_captures_of_blocking_streams() {
    in_child("the_legacy_stream_invalidates_captures_of_blocking_streams", &[], || {
        let session = Session::begin();
        let (event, address) = (session.event(), session.alloc(4096));
        let fill = || cu!(cuMemsetD8_v2(address, 1_u32, 16_usize));
        let record = || cu!(cuEventRecord(event, 0_usize));
        let calls: [&(dyn Fn() -> i32 + Sync); 2] = [&fill, &record];
        for call in calls {
            assert_eq!(elsewhere(&session, 1, false, call), (0, 0), "a non-blocking stream");
            assert_eq!(elsewhere(&session, 0, false, call), (906, 901));
            assert_eq!(elsewhere(&session, 0, true, call), (906, 901), "relaxed or not");
        }
        assert_eq!(elsewhere(&session, 1, true, || cu!(cuCtxSynchronize())), (900, 901));
    });
}

#[test]
fn captured_work_does_not_run() {
    in_child("captured_work_does_not_run", &[], || {
        let session = Session::begin();
        let (stream, event, address) = (session.stream(1), session.event(), session.alloc(64));
        session.write(address, &[1; 64]);
        assert_eq!(end(stream), 401, "nothing to end");
        assert_eq!(cu!(cuStreamBeginCapture_v2(0_usize, GLOBAL)), 900);
        ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
        assert_eq!(cu!(cuStreamBeginCapture_v2(stream, GLOBAL)), 401);
        assert_eq!(status(stream), ACTIVE);
        ok!(cuMemsetD8Async(address, 7_u32, 64_usize, stream));
        assert_eq!(end(stream), 0);
        assert_eq!(session.read(address, 64), [1; 64]);

        ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
        ok!(cuEventRecord(event, stream));
        assert_eq!(cu!(cuEventQuery(event)), 907);
        assert_eq!(status(stream), INVALIDATED);
        assert_eq!(cu!(cuMemsetD8Async(address, 7_u32, 64_usize, stream)), 901);
        assert_eq!(end(stream), 901);
    });
}

#[test]
fn a_stream_that_waits_for_captured_work_joins() {
    in_child("a_stream_that_waits_for_captured_work_joins", &[], || {
        let session = Session::begin();
        let (stream, other, event, address) =
            (session.stream(1), session.stream(1), session.event(), session.alloc(64));
        ok!(cuStreamBeginCapture_v2(stream, RELAXED));
        ok!(cuEventRecord(event, stream));
        ok!(cuStreamWaitEvent(other, event, 0_u32));
        assert_eq!(status(other), ACTIVE);
        ok!(cuMemsetD8Async(address, 7_u32, 64_usize, other));
        assert_eq!(end(stream), 904, "work in the other stream is not joined");
        assert_eq!(status(other), 0);
    });
}

#[test]
fn a_capturing_stream_cannot_be_queried() {
    in_child("a_capturing_stream_cannot_be_queried", &[], || {
        let session = Session::begin();
        let stream = session.stream(1);
        ok!(cuStreamBeginCapture_v2(stream, RELAXED));
        assert_eq!(cu!(cuStreamQuery(stream)), 900);
        assert_eq!(end(stream), 901);
        let mut mode = RELAXED;
        ok!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(mode, GLOBAL);
        ok!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(mode, RELAXED);
    });
}

#[test]
fn a_launched_graph_makes_the_captured_calls_again() {
    in_child("a_launched_graph_makes_the_captured_calls_again", &[], || {
        let session = Session::begin();
        let stream = session.stream(1);
        let (word, other) = (session.pinned(8), session.alloc(8));
        let address = word.as_ptr() as u64;
        ok!(cuStreamBeginCapture_v2(stream, GLOBAL));
        ok!(cuMemcpyAsync(other, address, 8_usize, stream));
        ok!(cuStreamWriteValue64_v2(stream, address, 7_u64, 0_u32));
        let (mut graph, mut executable) = (0_usize, 0_usize);
        ok!(cuStreamEndCapture(stream, &raw mut graph));
        ok!(cuGraphInstantiateWithFlags(&raw mut executable, graph, 0_u64));
        ok!(cuGraphDestroy(graph));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(*word, [0; 8], "capturing does nothing");
        for before in [3_u8, 4] {
            word[0] = before;
            ok!(cuGraphLaunch(executable, stream));
            ok!(cuStreamSynchronize(stream));
            assert_eq!(*word, 7_u64.to_le_bytes());
            let mut copied = [0_u8; 8];
            ok!(cuMemcpyDtoH_v2(copied.as_mut_ptr(), other, 8_usize));
            assert_eq!(copied, u64::from(before).to_le_bytes());
        }
        ok!(cuGraphExecDestroy(executable));
    });
}
