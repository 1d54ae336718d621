//! Processes that leave at any moment, and the events at their peers.

mod common;

use cableway_btl::{Error, FragmentKind, Token, Transfer};
use common::{Node, Pair, pair, pattern, region, send, try_send, until};

/// Finalizes `node` while no other node progresses.
fn end(node: &Node) {
    until(&[node], "everything has left", || node.btl.finalize());
}

fn progress_for(node: &Node, rounds: usize) {
    for _ in 0..rounds {
        node.progress();
    }
}

#[test]
fn a_goodbye_is_reported_after_the_last_message_of_every_link() {
    for links in ["btl_tcp_links=1", "btl_tcp_links=3"] {
        let Pair { a, b, mut to_b, mut to_a } = pair(&[links]);
        for endpoint in &mut to_b {
            send(&[&a, &b], &mut **endpoint, b"first", b"");
        }
        until(&[&a, &b], "they arrive", || b.received() == to_b.len());
        assert!(b.btl.is_connected(0) && !b.btl.is_connected(1));
        // These are not read while the sender lives.
        let mut sent = to_b.len();
        for round in 0..20 {
            for endpoint in &mut to_b {
                send(&[&a], &mut **endpoint, &pattern(100, round), &pattern(2000, round));
                sent += 1;
            }
        }
        end(&a);
        drop((to_b, a));
        until(&[&b], "the departure is reported", || !b.seen.left.lock().is_empty());
        assert_eq!(*b.seen.left.lock(), [(0, sent)]);
        for endpoint in &mut to_a {
            let tried = [
                endpoint.connect().err(),
                endpoint.send_inline(b"x", b"").err(),
                endpoint.alloc(1, FragmentKind::Host).err(),
            ];
            for error in tried {
                assert!(matches!(error, Some(Error::PeerLeft { peer: 0, .. })), "{error:?}");
            }
        }
        progress_for(&b, 10_000);
        assert!(b.seen.left.lock().len() == 1 && b.seen.failed.lock().is_empty());
        assert!(!b.btl.is_connected(0));
        end(&b);
    }
}

#[test]
fn operations_to_a_peer_that_left_complete_with_an_error() {
    let Pair { a, b, mut to_b, mut to_a } = pair(&["btl_tcp_sndbuf=64K", "btl_tcp_rcvbuf=64K"]);
    send(&[&a, &b], &mut *to_b[0], b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    let mut memory = vec![1; 100_000];
    let mut started = 0;
    for token in 0..200 {
        // SAFETY: the memory outlives the operation.
        let sent = unsafe { to_a[0].send_in_place(b"header", region(&mut memory[..30_000]), Token(token)) };
        match sent.unwrap() {
            Transfer::Busy => break,
            Transfer::Started => started += 1,
            Transfer::Done => {}
        }
    }
    assert!(started > 0, "the socket never filled");
    end(&a);
    until(&[&b], "the departure is reported", || !b.seen.left.lock().is_empty());
    let completed = b.seen.completed.lock();
    let lost = |result: &Result<(), Error>| matches!(result, Err(Error::PeerLeft { peer: 0, .. }));
    assert_eq!(completed.len(), started);
    // The peer's kernel has accepted some.
    assert!(completed.iter().all(|(_, result)| result.is_ok() || lost(result)), "{completed:?}");
    assert!(completed.iter().any(|(_, result)| lost(result)) && b.seen.failed.lock().is_empty());
}

#[test]
fn a_peer_that_leaves_during_the_handshake_has_not_failed() {
    for steps in 0..60 {
        for (caller, links) in
            [(0, "btl_tcp_links=1"), (1, "btl_tcp_links=1"), (0, "btl_tcp_links=2"), (1, "btl_tcp_links=2")]
        {
            let Pair { a, b, to_b, to_a } = pair(&[links]);
            let (caller, answerer, mut endpoints, others) =
                if caller == 0 { (a, b, to_b, to_a) } else { (b, a, to_a, to_b) };
            for endpoint in &mut endpoints {
                endpoint.connect().unwrap();
            }
            for step in 0..steps {
                if step % 2 == 0 {
                    caller.progress()
                } else {
                    answerer.progress()
                };
            }
            end(&caller);
            drop((endpoints, caller));
            // Without a report a process would wait for the whole retry time.
            progress_for(&answerer, 2000);
            assert!(answerer.seen.failed.lock().is_empty(), "{steps}: {:?}", answerer.seen.failed.lock());
            assert!(answerer.seen.left.lock().len() <= 1);
            drop(others);
        }
    }
}

#[test]
fn both_may_leave_at_any_moment() {
    for steps in 0..40 {
        let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
        to_b[0].connect().unwrap();
        to_a[0].connect().unwrap();
        let mut sent = 0;
        for step in 0..steps {
            if step % 3 == 0 {
                a.progress()
            } else {
                b.progress()
            };
            sent += usize::from(step > 20 && try_send(&mut *to_b[0], b"x", b"").unwrap());
        }
        end(&a);
        drop((to_b, a));
        if sent != 0 {
            until(&[&b], "the departure is reported", || b.seen.left.lock().len() == 1);
            assert_eq!(*b.seen.left.lock(), [(0, sent)]);
        }
        end(&b);
        let failures = b.seen.failed.lock();
        assert!(failures.iter().all(|(_, error)| matches!(error, Error::Unreachable { .. })), "{failures:?}");
        drop(to_a);
    }
}

#[test]
fn a_process_that_has_left_accepts_no_connection() {
    let Pair { a, b, to_b: _to_b, mut to_a } = pair(&["peer_timeout=2s"]);
    end(&a);
    // The process still exists, but does not answer.
    to_a[0].connect().unwrap();
    until(&[&b], "the failure is reported", || !b.seen.failed.lock().is_empty());
    assert!(matches!(b.seen.failed.lock()[..], [(0, Error::Unreachable { peer: 0, .. })]));
    drop(a);
}
