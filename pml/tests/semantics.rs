//! MPI's point-to-point semantics beyond plain sends and receives.

mod common;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::Flags;
use cableway_pml::{Abort, AttachedBuffer, Buffer, Engine, Error, Outcome, PROC_NULL, Request, SendMode, Status};

use common::{ANY_, Link, Ranks, WORLD, bytes, pattern, space};

fn two() -> Ranks {
    Ranks::new(2, &[Link::new("net", Flags::GET)])
}

/// One size for each protocol: inline, eager, rendezvous by fragments, rendezvous by GET.
const WAYS: [usize; 4] = [8, 3000, 6000, 100_000];

#[test]
fn a_synchronous_send_completes_when_it_is_matched() {
    for len in [0, 8, 3000, 6000, 100_000] {
        let ranks = two();
        let data = pattern(len, 1);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Synchronous);
        ranks.settle();
        assert!(!send.is_complete(), "{len} bytes: no receive has matched it");
        let mut received = vec![0; len];
        let receive = ranks.irecv(1, 0, 1, &mut received);
        send.finish(&ranks);
        ranks.finish(&[&receive]);
        assert_eq!(receive.result().unwrap().len, len as u64);
        assert!(received == data);
        // Post the receive first.
        let receive = ranks.irecv(1, 0, 1, &mut received);
        let send = ranks.isend(0, 1, 1, &data, &SendMode::Synchronous);
        send.finish(&ranks);
        ranks.finish(&[&receive]);
    }
}

/// Checks what a host must know before it frees a buffer that the engine still has.
#[test]
fn a_request_reports_whether_its_transfer_has_begun() {
    let ranks = two();
    let (data, mut received) = (pattern(100_000, 1), vec![0; 100_000]);
    let (copied, exposed) = (Request::new(), Request::new());
    for (request, len) in [(&copied, 8), (&exposed, data.len())] {
        // SAFETY: data and requests live until the requests are complete.
        let outcome = unsafe {
            ranks.engines[0].isend(&ranks.world[0], 1, 1, bytes(&data[..len]), &SendMode::Synchronous, request)
        };
        assert_eq!(outcome.unwrap(), Outcome::Started);
    }
    ranks.settle();
    assert!(copied.is_active() && !copied.is_transferring());
    assert!(exposed.is_active() && exposed.is_transferring());
    let mut unused = [0; 8];
    let waiting = ranks.irecv(1, 0, 2, &mut unused);
    assert!(waiting.is_active() && !waiting.is_transferring());
    for request in [&copied, &exposed] {
        assert!(ranks.recv(1, 0, 1, &mut received).is_ok());
        ranks.finish(&[request]);
        assert!(request.is_complete() && !request.is_transferring());
    }
    // SAFETY: it was started on this engine.
    assert!(unsafe { ranks.engines[1].cancel(&*waiting) });
}

#[test]
fn a_small_standard_send_completes_without_a_receive() {
    let ranks = two();
    let data = pattern(3000, 1);
    assert!(ranks.isend(0, 1, 1, &data[..8], &SendMode::Standard).is_complete());
    assert!(ranks.isend(0, 1, 1, &data, &SendMode::Ready).is_complete());
    assert!(!ranks.isend(0, 1, 1, &pattern(50_000, 1), &SendMode::Standard).is_complete());
}

#[test]
fn buffered_sends_complete_at_once_and_outlive_their_buffer() {
    let ranks = two();
    let mut memory = vec![0u8; 200_000];
    // SAFETY: the memory outlives the test's use of the buffer.
    let attached = Arc::new(unsafe { AttachedBuffer::new(memory.as_mut_ptr(), memory.len()) });
    let mode = SendMode::Buffered(attached.clone());
    for (tag, len) in WAYS.into_iter().enumerate() {
        let data = pattern(len, tag as u8);
        assert!(ranks.isend(0, 1, tag as i32, &data, &mode).is_complete());
        drop(data);
    }
    assert!(!attached.is_empty(), "large messages wait in the buffer");
    let request = Request::new();
    let data = pattern(100_000, 9);
    // SAFETY: buffer and request outlive the call, which fails.
    let full = unsafe { ranks.engines[0].isend(&ranks.world[0], 1, 9, bytes(&data), &mode, &request) };
    assert!(matches!(full, Err(Error::NoBufferSpace { size: 200_000, .. })));
    for (tag, len) in WAYS.into_iter().enumerate() {
        let mut received = vec![0; len];
        assert_eq!(ranks.recv(1, 0, tag as i32, &mut received).unwrap().len, len as u64);
        assert!(received == pattern(len, tag as u8));
    }
    ranks.settle();
    assert!(attached.is_empty());
}

#[test]
fn a_probe_returns_the_message_that_a_receive_would_get() {
    let ranks = Ranks::new(3, &[Link::new("net", Flags::GET)]);
    let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
    assert_eq!(engine.iprobe(world, ANY_, ANY_).unwrap(), None);
    let data: Vec<Vec<u8>> = WAYS.iter().map(|&len| pattern(len, 0)).collect();
    for (tag, data) in data.iter().enumerate() {
        let send = ranks.isend(1 + tag % 2, 0, tag as i32, data, &SendMode::Standard);
        ranks.settle();
        let expected = Status { source: 1 + tag as i32 % 2, tag: tag as i32, len: data.len() as u64, cancelled: false };
        for (source, tag) in
            [(ANY_, ANY_), (expected.source, ANY_), (ANY_, expected.tag), (expected.source, expected.tag)]
        {
            assert_eq!(engine.iprobe(world, source, tag).unwrap(), Some(expected));
        }
        assert_eq!(engine.iprobe(world, 3 - expected.source, ANY_).unwrap(), None);
        assert_eq!(engine.probe(world, ANY_, ANY_).unwrap(), expected);
        let mut received = vec![0; data.len()];
        assert_eq!(ranks.recv(0, expected.source, ANY_, &mut received).unwrap(), expected);
        assert!(received == *data);
        send.finish(&ranks);
    }
}

#[test]
fn a_matched_probe_hides_the_message_from_receives() {
    let ranks = two();
    for len in WAYS {
        let (first, second) = (pattern(len, 1), pattern(len, 2));
        let sends = [&first, &second].map(|data| ranks.isend(0, 1, 5, data, &SendMode::Standard));
        ranks.settle();
        let (engine, world) = (&ranks.engines[1], &ranks.world[1]);
        let message = engine.improbe(world, 0, 5).unwrap().unwrap();
        assert_eq!(message.status(), Status { source: 0, tag: 5, len: len as u64, cancelled: false });
        let mut received = vec![0; len];
        ranks.recv(1, 0, 5, &mut received).unwrap();
        assert!(received == second, "the receive gets the other message");
        let mut received = vec![0; len];
        let request = Request::new();
        // SAFETY: buffer and request live until complete.
        unsafe { engine.imrecv(message, space(&mut received), &request) };
        ranks.finish(&[&request]);
        assert_eq!(request.result().unwrap().len, len as u64);
        assert!(std::mem::take(&mut received) == first);
        assert!(engine.improbe(world, ANY_, ANY_).unwrap().is_none());
        sends.iter().for_each(|send| send.finish(&ranks));
    }
}

#[test]
fn the_sender_of_a_dropped_message_gets_an_error() {
    let ranks = two();
    let data = pattern(100_000, 1);
    let send = ranks.isend(0, 1, 5, &data, &SendMode::Standard);
    ranks.settle();
    drop(ranks.engines[1].improbe(&ranks.world[1], 0, 5).unwrap().unwrap());
    let request = send.0.unwrap();
    ranks.finish(&[&request]);
    assert!(matches!(request.error(), Some(Error::PeerAborted { peer: 1, len: 100_000, reason: Abort::Discarded })));
    ranks.carry(100_000, 1);
}

#[test]
fn only_the_engine_that_probed_a_message_receives_it() {
    let ranks = two();
    for len in WAYS {
        let data = pattern(len, 1);
        let send = ranks.isend(0, 1, 5, &data, &SendMode::Standard);
        ranks.settle();
        let message = ranks.engines[1].improbe(&ranks.world[1], 0, 5).unwrap().unwrap();
        let mut received = vec![0; len];
        let request = Request::new();
        // SAFETY: buffer and request live until complete.
        unsafe { ranks.engines[0].imrecv(message, space(&mut received), &request) };
        assert!(matches!(request.error(), Some(Error::OtherEngine)), "{len} bytes: {:?}", request.error());
        // The message is discarded, as if it had been dropped.
        if let Some(send) = send.0 {
            ranks.finish(&[&send]);
            assert!(send.is_complete());
        }
        ranks.carry(len, 5);
    }
    let null = ranks.engines[1].improbe(&ranks.world[1], PROC_NULL, 5).unwrap().unwrap();
    // SAFETY: no buffer.
    let result = unsafe { ranks.engines[0].mrecv(null, Buffer::EMPTY) };
    assert!(result.is_ok(), "any engine receives the message of PROC_NULL");
}

#[test]
fn only_unmatched_receives_are_cancelled() {
    let ranks = two();
    let mut received = [0; 8];
    let engine = &ranks.engines[1];
    let receive = ranks.irecv(1, 0, 3, &mut received);
    // SAFETY: the request is valid.
    unsafe {
        assert!(engine.cancel(&*receive));
        assert!(receive.is_complete() && receive.status().cancelled && receive.error().is_none());
        assert!(!engine.cancel(&*receive), "it is complete");
    }
    // The message goes to another receive.
    let other = ranks.irecv(1, ANY_, ANY_, &mut received);
    ranks.isend(0, 1, 3, &[7; 8], &SendMode::Standard).finish(&ranks);
    ranks.finish(&[&other]);
    assert!(!other.status().cancelled);
    // A matched receive completes normally. A send is never cancelled.
    let data = pattern(100_000, 3);
    let send = ranks.isend(0, 1, 3, &data, &SendMode::Standard);
    // SAFETY: the request is valid.
    assert!(!unsafe { ranks.engines[0].cancel(&**send.0.as_ref().unwrap()) });
    let mut large = vec![0; 100_000];
    assert_eq!(ranks.recv(1, 0, 3, &mut large).unwrap().len, 100_000);
    send.finish(&ranks);
}

#[test]
fn persistent_requests_start_again_and_again() {
    let ranks = two();
    for len in WAYS {
        let (mut data, mut received) = (pattern(len, 0), vec![0; len]);
        let (send, receive) = (Request::new(), Request::new());
        let (source, target) =
            (Buffer::bytes(data.as_mut_ptr(), len as u64), Buffer::bytes(received.as_mut_ptr(), len as u64));
        let [zero, one] = [0, 1].map(|rank| (&ranks.engines[rank], &ranks.world[rank]));
        // SAFETY: buffers and requests are not touched while active.
        unsafe {
            zero.0.send_init(zero.1, 1, 2, source, &SendMode::Standard, &send).unwrap();
            one.0.recv_init(one.1, ANY_, 2, target, &receive).unwrap();
            assert!(send.is_persistent() && !send.is_active());
            for round in 0..5 {
                data.copy_from_slice(&pattern(len, round));
                zero.0.start(&send).unwrap();
                one.0.start(&receive).unwrap();
                if receive.is_active() {
                    assert!(matches!(one.0.start(&receive), Err(Error::BadRequest { .. })));
                }
                ranks.finish(&[&send, &receive]);
                assert_eq!(receive.status().len, len as u64);
                assert!(received == data);
            }
            assert!(matches!(zero.0.start(&Request::new()), Err(Error::BadRequest { .. })));
        }
    }
}

/// Counts calls, and calls back into the engine.
struct Called {
    engine: Arc<Engine>,
    calls: AtomicUsize,
}

unsafe fn call(request: *const Request, user: *mut c_void) {
    // SAFETY: the test keeps both while requests are active.
    let (request, called) = unsafe { (&*request, &*user.cast::<Called>()) };
    assert!(request.is_complete());
    called.calls.fetch_add(1, Ordering::Relaxed);
    called.engine.progress();
}

#[test]
fn hooks_are_called_once_and_may_call_the_engine() {
    let ranks = two();
    let called = [0, 1].map(|rank| Called { engine: ranks.engines[rank].clone(), calls: AtomicUsize::new(0) });
    let user = |rank: usize| (&raw const called[rank]).cast_mut().cast::<c_void>();
    let mut expected = [0, 0];
    for len in WAYS {
        for late in [true, false] {
            let (data, mut received) = (pattern(len, 0), vec![0; len]);
            let (send, receive) = (Request::new(), Request::new());
            // SAFETY: buffers and requests live until complete.
            unsafe {
                send.set_hook(Some((call, user(0))));
                receive.set_hook(Some((call, user(1))));
                let mut post =
                    || ranks.engines[1].irecv(&ranks.world[1], 0, 1, space(&mut received), &receive).unwrap();
                if !late {
                    post();
                }
                let outcome =
                    ranks.engines[0].isend(&ranks.world[0], 1, 1, bytes(&data), &SendMode::Standard, &send).unwrap();
                ranks.settle();
                if late {
                    post();
                }
                ranks.finish(&[&receive]);
                ranks.settle();
                expected[0] += usize::from(outcome == Outcome::Started);
                expected[1] += 1;
            }
            assert!(received == data);
            assert_eq!([0, 1].map(|rank| called[rank].calls.load(Ordering::Relaxed)), expected);
        }
    }
}

#[test]
fn wildcards_do_not_match_internal_tags() {
    let ranks = two();
    ranks.isend(0, 1, -20, &[1], &SendMode::Standard).finish(&ranks);
    ranks.isend(0, 1, 0, &[2], &SendMode::Standard).finish(&ranks);
    let mut received = [0];
    assert_eq!(ranks.recv(1, ANY_, ANY_, &mut received).unwrap().tag, 0);
    assert_eq!(ranks.recv(1, ANY_, -20, &mut received).unwrap().tag, -20);
    assert_eq!(received, [1]);
}

#[test]
fn no_operation_starts_after_finalize() {
    let ranks = two();
    ranks.carry(8, 1);
    ranks.finalize();
    let request = Request::new();
    // SAFETY: no buffer.
    unsafe {
        let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
        assert!(matches!(engine.irecv(world, 1, 1, Buffer::EMPTY, &request), Err(Error::Finalized)));
        let sent = engine.isend(world, 1, 1, Buffer::EMPTY, &SendMode::Standard, &request);
        assert!(matches!(sent, Err(Error::Finalized)));
        assert!(matches!(engine.add_communicator(4, vec![0], 0), Err(Error::Finalized)));
    }
    assert_eq!(ranks.world[0].context(), WORLD);
    assert_eq!(PROC_NULL, -2, "the value of Open MPI");
}

#[test]
fn waiting_for_any_returns_the_complete_request() {
    let ranks = two();
    let mut received = [[0; 8]; 3];
    let [first, second, third] = &mut received;
    let receives = [ranks.irecv(1, 0, 1, first), ranks.irecv(1, 0, 2, second), ranks.irecv(1, 0, 3, third)];
    let all: Vec<&Request> = receives.iter().map(|request| &**request).collect();
    assert!(ranks.isend(0, 1, 2, &[1; 8], &SendMode::Standard).is_complete());
    assert_eq!(ranks.engines[1].wait_any(&all), Some(1));
    for tag in [1, 3] {
        assert!(ranks.isend(0, 1, tag, &[1; 8], &SendMode::Standard).is_complete());
    }
    ranks.engines[1].wait(&all);
    assert!(all.iter().all(|request| request.is_complete()));
    assert_eq!(ranks.engines[1].wait_any(&[&Request::new()]), None);
}
