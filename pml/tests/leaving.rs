//! Peers that end in good order, and receives from peers that were never connected.

mod common;

use std::time::Duration;

use cableway_btl::Flags;
use cableway_pml::{Buffer, Error, Request, SendMode};

use common::{ANY_, Link, Ranks, bytes, pattern, space};

/// Only a hanging call takes this long.
const HANG: Duration = Duration::from_secs(120);

/// Ends rank `who` in good order. The others learn it when they make progress.
fn leave(ranks: &Ranks, who: usize) {
    assert!(ranks.engines[who].finalize(HANG));
}

/// Lets all ranks but `without` make progress.
fn others(ranks: &Ranks, without: usize) {
    for _ in 0..1000 {
        for (rank, engine) in ranks.engines.iter().enumerate() {
            if rank != without {
                engine.progress();
            }
        }
    }
}

fn has_left(error: Option<&Error>, of: u32) -> bool {
    matches!(error, Some(Error::PeerLeft { peer }) if *peer == of)
}

#[test]
fn a_peer_that_leaves_ends_only_the_requests_that_name_it() {
    for flags in [Flags::empty(), Flags::GET, Flags::PUT, Flags::SEND_IN_PLACE] {
        let ranks = Ranks::new(3, &[Link::new("net", flags).with(|link| link.asynchronous = true)]);
        let (data, mut buffers) = (pattern(200_000, 1), vec![vec![0; 200_000]; 4]);
        let [one, more, any, other] = &mut buffers[..] else { unreachable!() };
        let bad = [
            ranks.isend(0, 1, 1, &data, &SendMode::Standard).0.unwrap(),
            ranks.isend(0, 1, 1, &data[..100], &SendMode::Synchronous).0.unwrap(),
            ranks.irecv(0, 1, 1, &mut one[..100]),
            ranks.irecv(0, 1, ANY_, more),
        ];
        let good = [ranks.irecv(0, ANY_, 7, any), ranks.irecv(0, 2, 1, other)];
        ranks.settle();
        leave(&ranks, 1);
        others(&ranks, 1);
        for (which, request) in bad.iter().enumerate() {
            assert!(has_left(request.error(), 1), "request {which}: {:?}", request.error());
        }
        assert!(good.iter().all(|request| !request.is_complete()));
        // New operations with it fail. Operations that another rank can complete still start.
        let (engine, world, request) = (&ranks.engines[0], &ranks.world[0], Request::new());
        // SAFETY: nothing is started.
        unsafe {
            for mode in [SendMode::Standard, SendMode::Synchronous] {
                assert!(has_left(engine.isend(world, 1, 1, bytes(&data), &mode, &request).err().as_ref(), 1));
            }
            assert!(has_left(engine.send_now(world, 1, 1, Buffer::EMPTY).err().as_ref(), 1));
            assert!(has_left(engine.irecv(world, 1, 1, Buffer::EMPTY, &request).err().as_ref(), 1));
            assert!(has_left(engine.iprobe(world, 1, 1).err().as_ref(), 1));
        }
        assert!(engine.iprobe(world, ANY_, 1).unwrap().is_none());
        let sends = [7, 1].map(|tag| ranks.isend(2, 0, tag, &data, &SendMode::Standard));
        others(&ranks, 1);
        for request in good {
            assert_eq!(request.result().unwrap().len, 200_000);
        }
        assert!(sends.iter().all(|send| send.is_complete()));
    }
}

#[test]
fn messages_sent_before_leaving_are_received_and_their_credit_is_dropped() {
    let limit = [("pml_unexpected_limit", "4K")];
    let ranks = Ranks::with(2, &[Link::new("net", Flags::empty())], &limit, false);
    // These messages are on the wire when the sender leaves. The receiver's credit for them is dropped.
    for tag in 0..8 {
        assert!(ranks.isend(1, 0, tag, &[tag as u8; 200], &SendMode::Standard).is_complete());
    }
    let mut buffers = [[0; 200]; 4];
    let posted: Vec<_> = buffers.iter_mut().zip(0..).map(|(received, tag)| ranks.irecv(0, 1, tag, received)).collect();
    leave(&ranks, 1);
    others(&ranks, 1);
    assert!(posted.iter().all(|request| request.result().is_ok()));
    for tag in 4..8 {
        let mut received = [0; 200];
        let source = if tag % 2 == 0 { 1 } else { ANY_ };
        assert_eq!(ranks.recv(0, source, tag, &mut received).unwrap().len, 200);
        assert_eq!(received, [tag as u8; 200]);
    }
    assert!(ranks.engines[0].finalize(HANG), "nothing waits to be sent");
}

#[test]
fn a_receive_from_any_source_ends_when_the_last_peer_leaves() {
    let ranks = Ranks::new(4, &[Link::new("net", Flags::empty())]);
    let (mut received, mut inbox) = ([0; 8], [0; 8]);
    leave(&ranks, 1);
    ranks.net.unreachable(2);
    let posted = ranks.irecv(0, ANY_, 1, &mut received);
    // A waiting call checks the peers, and finds one that may still send.
    let sent = ranks.isend(3, 0, 5, &[5; 8], &SendMode::Standard);
    let engine = &ranks.engines[0];
    // SAFETY: the buffer is valid.
    unsafe { engine.recv(&ranks.world[0], ANY_, 5, space(&mut inbox)) }.unwrap();
    assert!(sent.is_complete() && !posted.is_complete());
    leave(&ranks, 3);
    engine.wait(&[&posted]);
    assert!(has_left(posted.error(), 3), "{:?}", posted.error());
    // SAFETY: as above.
    let error = unsafe { engine.recv(&ranks.world[0], ANY_, 5, space(&mut inbox)) }.unwrap_err();
    assert!(has_left(Some(&error), 3));
    assert!(has_left(engine.probe(&ranks.world[0], ANY_, 5).err().as_ref(), 3));
    assert!(has_left(engine.mprobe(&ranks.world[0], ANY_, 5).err().as_ref(), 3));
}

#[test]
fn a_process_that_sends_to_itself_counts_as_a_sender() {
    let ranks = Ranks::new(2, &[Link::new("net", Flags::empty())]);
    let (mut first, mut second) = ([0; 8], [0; 8]);
    let posted = [ranks.irecv(0, ANY_, 1, &mut first), ranks.irecv(0, ANY_, 2, &mut second)];
    leave(&ranks, 1);
    others(&ranks, 1);
    assert!(posted.iter().all(|request| !request.is_complete()), "no call waits yet");
    for tag in [1, 2] {
        ranks.isend(0, 0, tag, &[1; 8], &SendMode::Standard).finish(&ranks);
    }
    ranks.engines[0].wait(&[&posted[0], &posted[1]]);
    assert!(posted.iter().all(|request| request.error().is_none()));
}

#[test]
fn a_waiting_call_connects_the_peer_that_it_waits_for() {
    let ranks = Ranks::new(4, &[Link::new("net", Flags::empty())]);
    ranks.net.unreachable(1);
    ranks.net.unreachable(2);
    let (engine, world, mut received) = (&ranks.engines[0], &ranks.world[0], [0; 8]);
    // SAFETY: the buffer is valid.
    let error = unsafe { engine.recv(world, 1, 1, space(&mut received)) }.unwrap_err();
    assert!(matches!(error, Error::Unreachable { peer: 1, .. }), "{error}");
    assert!(ranks.net.was_reached(0, 1) && !ranks.net.was_reached(0, 2) && !ranks.net.was_reached(0, 3));
    let error = engine.probe(world, 2, 1).unwrap_err();
    assert!(matches!(error, Error::Unreachable { peer: 2, .. }), "{error}");
    assert!(!ranks.net.was_reached(0, 3));
}

#[test]
fn the_end_of_an_unconnected_peer_is_noticed() {
    for killed in [false, true] {
        let ranks = Ranks::new(2, &[Link::new("net", Flags::empty())]);
        let mut received = [0; 8];
        let posted = ranks.irecv(0, 1, 1, &mut received);
        if killed {
            ranks.net.kill(1)
        } else {
            leave(&ranks, 1)
        }
        others(&ranks, 1);
        let error = posted.error();
        assert!(if killed { matches!(error, Some(Error::PeerFailed { peer: 1, .. })) } else { has_left(error, 1) });
    }
}

#[test]
fn a_receive_whose_sender_has_left_can_be_cancelled() {
    let ranks = Ranks::new(2, &[Link::new("net", Flags::empty())]);
    let (mut received, data) = ([0; 8], pattern(100_000, 1));
    let receive = ranks.irecv(0, 1, 1, &mut received);
    let send = ranks.isend(0, 1, 1, &data, &SendMode::Standard).0.unwrap();
    leave(&ranks, 1);
    others(&ranks, 1);
    assert!(has_left(receive.error(), 1) && has_left(send.error(), 1));
    // SAFETY: both are valid.
    unsafe {
        assert!(ranks.engines[0].cancel(&*receive));
        assert!(!ranks.engines[0].cancel(&*send));
    }
    assert!(receive.error().is_none() && receive.status().cancelled);
    assert!(has_left(send.error(), 1));
}

#[test]
fn a_peer_has_left_only_when_all_transports_say_so() {
    // The second transport has delivered nothing when the first reports the end.
    let ranks = Ranks::new(2, &[Link::new("one", Flags::empty()), Link::new("two", Flags::empty())]);
    ranks.carry(100_000, 1);
    let mut received = [0; 8];
    let posted = ranks.irecv(0, 1, 9, &mut received);
    ranks.net.hold(1);
    leave(&ranks, 1);
    others(&ranks, 1);
    assert!(!posted.is_complete(), "the other transport may still deliver messages");
    ranks.net.release(1);
    others(&ranks, 1);
    assert!(has_left(posted.error(), 1));
}
