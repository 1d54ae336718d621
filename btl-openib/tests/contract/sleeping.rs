//! Tests sleeping in blocking calls.

use std::time::{Duration, Instant};

use crate::common::{Node, Pair, connect, has_device, is_iwarp, node, pair, send, until};
use cableway_btl::{Endpoint, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_nodes::PATIENCE;

/// Sleeps until the transport has an event. Nothing else wakes it. A missed event costs a minute, which exceeds the
/// time limit of these tests.
fn sleep_until(node: &Node, what: &str, mut done: impl FnMut() -> bool) -> usize {
    let (start, mut sleeps) = (Instant::now(), 0);
    while !done() {
        assert!(start.elapsed() < PATIENCE, "woken without {what}");
        let mut wakers = Vec::new();
        let armed = node.btl.arm(&mut wakers);
        if node.progress() != 0 || !armed || done() {
            continue;
        }
        let mut sources: Vec<_> = wakers.iter().map(|waker| PollFd::new(waker, PollFlags::IN)).collect();
        let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert!(poll(&mut sources, Some(&minute)).unwrap() != 0, "nothing woke it: {what}");
        sleeps += 1;
        node.progress();
    }
    sleeps
}

#[test]
fn a_sleeper_misses_no_message() {
    const ROUNDS: usize = 2000;
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    let play = |node: &Node, link: &mut dyn Endpoint, first: bool, mut random: u32| {
        let already = node.received();
        let mut slept = 0;
        for round in 0..ROUNDS {
            let answer = |link: &mut dyn Endpoint| {
                until(&[node], "the message is accepted", || link.send_inline(b"ping", b"").unwrap() == Sent::Done);
            };
            if first {
                answer(link);
            }
            slept += sleep_until(node, "a message", || node.received() > already + round);
            // Before, during and after the other node's `arm`.
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            for _ in 0..random >> 19 {
                std::hint::spin_loop();
            }
            if !first {
                answer(link);
            }
        }
        slept
    };
    let slept = std::thread::scope(|scope| {
        let other = scope.spawn(|| play(&b, &mut *to_a, false, 7));
        play(&a, &mut *to_b, true, 8) + other.join().unwrap()
    });
    assert!(slept > ROUNDS / 10, "only {slept} sleeps, so this tests nothing");
    assert_eq!((a.failures(), b.failures()), (0, 0));
}

#[test]
fn a_sleeper_wakes_when_a_peer_ends() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a } = pair(&["peer_timeout=4s"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    // The service thread's heartbeats detect it, and a completion reports it.
    b.btl.break_off(0);
    until(&[&b], "a report", || b.failures() == 1);
    let slept = sleep_until(&a, "the peer's device falls silent", || a.failures() == 1) > 0;
    // Over iWARP the peer's kernel reports it at once.
    assert!(slept || is_iwarp());
    drop((to_a, to_b));

    let (a, b) = (node(0, 2, &["peer_timeout=2s"]), node(1, 2, &[]));
    let mut to_b = connect(&a, &b);
    drop(b);
    // Only the service thread detects it.
    to_b.connect().unwrap();
    assert!(sleep_until(&a, "nobody answers", || a.failures() == 1) > 0);
}

/// Returns the CPU time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_sleeper_uses_little_cpu_time() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    let wait = Duration::from_secs(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(wait);
            until(&[&a], "the message is accepted", || to_b.send_inline(b"second", b"").unwrap() == Sent::Done);
        });
        let before = processor_time();
        sleep_until(&b, "a message", || b.received() == 2);
        let used = processor_time() - before;
        assert!(used < wait / 4, "{used:?} of the processor");
    });
}
