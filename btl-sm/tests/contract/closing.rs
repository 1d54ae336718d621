//! Processes that end after their last message, and before they are connected.

use crate::common::{Pair, Process, pattern, send, until};
use cableway_btl::{Btl, Error, FragmentKind};

#[test]
fn a_peer_that_leaves_is_reported_after_its_last_message() {
    for assignments in [&[][..], &["btl_sm_fast_boxes=0"]] {
        let mut pair = Pair::new(assignments);
        (0..40).for_each(|index| pair.deliver(&pattern(index, 10)));
        assert!(pair.one.btl.is_connected(0) && !pair.one.btl.is_connected(1));
        // These are not read while the sender lives.
        let lengths = [8, 300, 3000, 30_000];
        for (index, &len) in lengths.iter().enumerate() {
            send(&[&pair.zero], &mut *pair.to_one, &pattern(index, len));
        }
        assert!(pair.one.take().is_none());
        until(&[&pair.zero], "the goodbye is sent", || pair.zero.btl.finalize());
        until(&[&pair.one], "the departure is reported", || !pair.one.heard.left.borrow().is_empty());
        assert_eq!(*pair.one.heard.left.borrow(), [(0, lengths.len())]);
        for (index, &len) in lengths.iter().enumerate() {
            assert!(pair.one.take().unwrap().1 == pattern(index, len));
        }
        let to_zero = &mut *pair.to_zero;
        for error in
            [to_zero.connect().err(), to_zero.send_inline(b"x", b"").err(), to_zero.alloc(1, FragmentKind::Host).err()]
        {
            assert!(matches!(error, Some(Error::PeerLeft { peer: 0, .. })), "{error:?}");
        }
        assert!(!pair.one.btl.is_connected(0));
        let Pair { zero, one, to_one, to_zero: _to_zero } = pair;
        drop((to_one, zero));
        progress_for(&one, 100_000);
        assert!(one.heard.left.borrow().len() == 1 && one.heard.failures.borrow().is_empty());
    }
}

#[test]
fn a_connection_reports_the_peers_end_without_messages() {
    for (caller, good) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut pair = Pair::new(&[]);
        let endpoint = if caller == 0 { &mut pair.to_one } else { &mut pair.to_zero };
        endpoint.connect().unwrap();
        until(&[&pair.zero, &pair.one], "both are connected", || {
            pair.one.btl.is_connected(0) && pair.zero.btl.is_connected(1)
        });
        assert!(pair.zero.heard.messages.borrow().is_empty());
        let Pair { zero, one, to_one, to_zero: _to_zero } = pair;
        if good {
            until(&[&zero], "the goodbye is sent", || zero.btl.finalize());
        }
        drop(zero);
        let heard = &one.heard;
        until(&[&one], "it is noticed", || heard.left.borrow().len() + heard.failures.borrow().len() == 1);
        assert_eq!(heard.left.borrow().len(), usize::from(good));
        // Its endpoint outlived it, as in a killed process.
        drop(to_one);
    }
}

#[test]
fn a_peer_that_leaves_before_the_answer_has_not_failed() {
    for steps in 0..200 {
        for caller in [0, 1] {
            let Pair { zero, one, mut to_one, mut to_zero } = Pair::new(&[]);
            let (caller, answerer, endpoint) =
                if caller == 0 { (zero, one, &mut to_one) } else { (one, zero, &mut to_zero) };
            endpoint.connect().unwrap();
            for step in 0..steps {
                if step % 3 != 0 {
                    caller.progress()
                } else {
                    answerer.progress()
                };
            }
            until(&[&caller], "the goodbye is sent", || caller.btl.finalize());
            drop(caller);
            progress_for(&answerer, 2000);
            assert!(answerer.heard.failures.borrow().is_empty(), "{:?}", answerer.heard.failures.borrow());
            assert!(answerer.heard.left.borrow().len() <= 1);
        }
    }
}

fn progress_for(process: &Process, rounds: usize) {
    for _ in 0..rounds {
        process.progress();
    }
}
