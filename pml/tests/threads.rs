//! Many threads use the same engines at once.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cableway_btl::Flags;
use cableway_pml::{Buffer, Outcome, Request, SendMode};

use common::{ANY_, Link, Ranks, bytes, pattern, space};

const THREADS: usize = 4;
const ROUNDS: usize = 150;
/// Only a hanging call takes this long.
const HANG: Duration = Duration::from_secs(120);

fn ranks(links: &[Link]) -> Ranks {
    // There are more threads than processors, so do not spin.
    Ranks::with(2, links, &[("pml_spin", "0")], false)
}

fn links() -> [Vec<Link>; 3] {
    [
        vec![Link::new("net", Flags::GET)],
        vec![Link::new("net", Flags::PUT).with(|link| (link.busy, link.asynchronous, link.count) = (200, true, 3))],
        vec![Link::new("net", Flags::SEND_IN_PLACE).with(|link| (link.asynchronous, link.busy) = (true, 100))],
    ]
}

/// Returns a size, so that the rounds use all protocols.
fn len(round: usize) -> usize {
    [0, 8, 3000, 9000, 60_000][round % 5] + round
}

#[test]
fn pairs_of_threads_with_a_communicator_each() {
    for links in links() {
        let ranks = &ranks(&links);
        let running = &[const { AtomicUsize::new(THREADS) }; 2];
        thread::scope(|scope| {
            for (rank, thread) in (0..2).flat_map(|rank| (0..THREADS).map(move |thread| (rank, thread))) {
                scope.spawn(move || {
                    let engine = &ranks.engines[rank];
                    let own = engine.add_communicator(10 + thread as u32, vec![0, 1], rank as u32).unwrap();
                    let peer = 1 - rank as i32;
                    for round in 0..ROUNDS {
                        let data = pattern(len(round), thread as u8);
                        let mut received = vec![0; data.len()];
                        // SAFETY: buffers outlive the calls.
                        let status = unsafe {
                            if (rank + round) % 2 == 0 {
                                engine.send(&own, peer, 1, bytes(&data), &SendMode::Standard).unwrap();
                                engine.recv(&own, ANY_, ANY_, space(&mut received)).unwrap()
                            } else {
                                let status = engine.recv(&own, peer, 1, space(&mut received)).unwrap();
                                engine.send(&own, peer, 1, bytes(&data), &SendMode::Synchronous).unwrap();
                                status
                            }
                        };
                        assert!(status.len == data.len() as u64 && received == data);
                    }
                    // A send is complete once its data is stored, though a busy link may have refused the header that
                    // tells the receiver so. Nobody polls this engine after its last thread.
                    if running[rank].fetch_sub(1, Ordering::AcqRel) == 1 {
                        assert!(engine.drain(HANG));
                    }
                });
            }
        });
        assert_eq!(ranks.counter(0, "malformed") + ranks.counter(1, "malformed"), 0);
    }
}

#[test]
fn threads_that_share_a_communicator_and_its_wildcards() {
    for links in links() {
        let ranks = &ranks(&links);
        let sums = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let (sums, deliveries) = (&sums, &AtomicUsize::new(0));
        thread::scope(|scope| {
            for (rank, thread) in (0..2).flat_map(|rank| (0..THREADS).map(move |thread| (rank, thread))) {
                // One thread sends, and one receives any message.
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let data = pattern(len(round), round as u8);
                        let (engine, world) = (&ranks.engines[rank], &ranks.world[rank]);
                        let tag = (thread * ROUNDS + round) as i32;
                        // SAFETY: the buffer outlives the call.
                        unsafe { engine.send(world, 1 - rank as i32, tag, bytes(&data), &SendMode::Standard) }.unwrap();
                    }
                });
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let (engine, world) = (&ranks.engines[rank], &ranks.world[rank]);
                        let mut received = vec![0; 70_000];
                        // SAFETY: the buffer outlives the call.
                        let status = unsafe { engine.recv(world, ANY_, ANY_, space(&mut received)) }.unwrap();
                        let round = status.tag as usize % ROUNDS;
                        assert!(received[..status.len as usize] == pattern(len(round), round as u8));
                        sums[rank].fetch_add(status.tag as usize, Ordering::Relaxed);
                        deliveries.fetch_add(1, Ordering::Relaxed);
                    }
                    // Messages that a busy link refused need progress until all are received.
                    while deliveries.load(Ordering::Relaxed) < 2 * THREADS * ROUNDS {
                        ranks.engines[rank].progress();
                        thread::yield_now();
                    }
                });
            }
        });
        let all = (0..THREADS * ROUNDS).sum::<usize>();
        assert_eq!(sums.each_ref().map(|sum| sum.load(Ordering::Relaxed)), [all, all], "each exactly once");
    }
}

#[test]
fn cancelled_or_received_but_never_both() {
    let ranks = &ranks(&[Link::new("net", Flags::empty())]);
    let mut cancelled = 0;
    for round in 0..300 {
        let mut received = [0u8; 8];
        let request = Request::new();
        let (engine, world) = (&ranks.engines[1], &ranks.world[1]);
        // SAFETY: buffer and request live until complete.
        unsafe { engine.irecv(world, 0, 1, Buffer::bytes(received.as_mut_ptr(), 8), &request) }.unwrap();
        let request = &request;
        let won = thread::scope(|scope| {
            scope.spawn(|| {
                let unused = Request::new();
                // SAFETY: the buffer outlives the call, which copies it.
                let outcome = unsafe {
                    let (engine, world) = (&ranks.engines[0], &ranks.world[0]);
                    engine.isend(world, 1, 1, bytes(&[7; 8]), &SendMode::Standard, &unused).unwrap()
                };
                assert_eq!(outcome, Outcome::Complete);
                engine.progress();
            });
            // SAFETY: the request is valid.
            let cancelling = scope.spawn(move || unsafe { engine.cancel(request) });
            cancelling.join().unwrap()
        });
        engine.wait(&[request]);
        assert_eq!(request.status().cancelled, won, "round {round}");
        if won {
            cancelled += 1;
            // SAFETY: the buffer outlives the call.
            unsafe { engine.recv(world, 0, 1, space(&mut received)) }.unwrap();
        }
        assert_eq!(received, [7; 8]);
    }
    println!("{cancelled} of 300 were cancelled");
}

#[test]
fn a_death_is_noticed_by_every_thread() {
    let ranks = &ranks(&[Link::new("net", Flags::GET)]);
    ranks.carry(8, 1);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..THREADS as i32)
            .map(|thread| {
                scope.spawn(move || {
                    let mut received = [0; 8];
                    let source = if thread % 2 == 0 { 1 } else { ANY_ };
                    // SAFETY: the buffer outlives the call.
                    unsafe { ranks.engines[0].recv(&ranks.world[0], source, thread, space(&mut received)) }
                })
            })
            .collect();
        ranks.net.kill(1);
        for thread in waiting {
            assert!(thread.join().unwrap().is_err());
        }
    });
}

#[test]
fn a_slow_link_does_not_delay_other_peers() {
    let ranks = &Ranks::new(3, &[Link::new("net", Flags::empty())]);
    let exchange = |peer: usize, round: usize| {
        let (there, back) = (pattern(len(round), 1), pattern(len(round), 2));
        let (mut received, mut inbox) = (vec![0; there.len()], vec![0; back.len()]);
        let posted = [ranks.irecv(peer, 0, 3, &mut received), ranks.irecv(0, peer as i32, 3, &mut inbox)];
        let sends = [
            ranks.isend(0, peer as i32, 3, &there, &SendMode::Standard),
            ranks.isend(peer, 0, 3, &back, &SendMode::Standard),
        ];
        ranks.finish(&[&posted[0], &posted[1]]);
        sends.iter().for_each(|send| send.finish(ranks));
        assert!(received == there && inbox == back);
    };
    (1..3).for_each(|peer| exchange(peer, 1));
    let wait = |done: &dyn Fn() -> bool| {
        let start = std::time::Instant::now();
        while !done() && start.elapsed() < std::time::Duration::from_secs(120) {
            thread::yield_now();
        }
        done()
    };
    ranks.net.stall(1);
    let rounds = AtomicUsize::new(0);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| ranks.isend(0, 1, 1, &[1; 8], &SendMode::Standard).is_complete());
        let is_stuck = wait(&|| ranks.net.stalled_calls() == 1);
        scope.spawn(|| {
            for round in 0..50 {
                exchange(2, round);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let others_went_on = wait(&|| rounds.load(Ordering::Relaxed) == 50);
        let still_stuck = !stuck.is_finished();
        ranks.net.resume();
        assert!(is_stuck && others_went_on && still_stuck && stuck.join().unwrap());
    });
    let mut received = [0; 8];
    ranks.recv(1, 0, 1, &mut received).unwrap();
}
