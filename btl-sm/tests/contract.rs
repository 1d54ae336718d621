//! Tests the BTL contract between two processes that share this one.

#[path = "contract/closing.rs"]
mod closing;
mod common;

use cableway_btl::{Access, Btl, Error, Flags, FragmentKind, Offer, Region, Remote, Sent, Token, Transfer};
use cableway_common_cuda::{Location, Order};
use common::{Pair, Process, pattern, send, send_fragment, until};

#[test]
fn messages_of_every_size_arrive() {
    let mut pair = Pair::new(&[]);
    let limit = pair.to_one.capabilities().max_send_size;
    for round in 0..3 {
        for len in (0..=200).chain([
            511,
            1023,
            1024,
            1025,
            4095,
            4096,
            4097,
            8191,
            8192,
            8193,
            8215,
            8216,
            8217,
            20_000,
            limit - 1,
            limit,
        ]) {
            pair.deliver(&pattern(len + round, len));
        }
    }
    assert!(pair.to_one.alloc(limit + 1, FragmentKind::Host).is_err());
    assert!(pair.to_one.send_inline(&[0; 16], &vec![0; 1 << 20]).is_err());
}

#[test]
fn all_kinds_of_sends_and_the_switch_to_a_fast_box_keep_the_order() {
    for assignments in [&["btl_sm_fast_box_threshold=20"][..], &["btl_sm_fast_boxes=0"], &["btl_sm_fast_box_size=1K"]] {
        let mut pair = Pair::new(assignments);
        let (count, mut next) = (3000, 0);
        let lengths = [8, 60, 1000, 3000, 30_000];
        let check = |next: &mut usize, pair: &Pair| {
            while let Some((_, bytes)) = pair.one.take() {
                let expected = pattern(*next, lengths[*next % lengths.len()]);
                assert!(bytes == expected, "message {next} under {assignments:?}");
                *next += 1;
            }
        };
        for index in 0..count {
            send(&[&pair.zero, &pair.one], &mut *pair.to_one, &pattern(index, lengths[index % lengths.len()]));
            check(&mut next, &pair);
        }
        until(&[&pair.zero, &pair.one], "all messages arrive", || {
            check(&mut next, &pair);
            next == count
        });
    }
}

#[test]
fn a_receiver_that_does_not_progress_makes_senders_busy_and_loses_nothing() {
    for assignments in [&[][..], &["btl_sm_fast_boxes=0"]] {
        let mut pair = Pair::new(assignments);
        pair.deliver(b"connected");
        let mut sent = 0_u64;
        while pair.to_one.send_inline(&sent.to_le_bytes(), &[]).unwrap() == Sent::Done {
            sent += 1;
            pair.zero.progress();
        }
        assert!(sent > 8, "{sent} messages fit");
        assert!(pair.to_one.alloc(4000, FragmentKind::Host).unwrap().is_none(), "no fragment may be free");
        until(&[&pair.one], "all messages arrive", || pair.one.heard.messages.borrow().len() as u64 == sent);
        for expected in 0..sent {
            assert_eq!(pair.one.take().unwrap().1, expected.to_le_bytes());
        }
        pair.deliver(b"after");
    }
}

#[test]
fn a_fragment_keeps_its_place_while_others_overtake_it() {
    let mut pair = Pair::new(&["btl_sm_fast_box_threshold=1"]);
    (0..4).for_each(|index| pair.deliver(&pattern(index, 30)));
    let mut late = pair.to_one.alloc(2000, FragmentKind::Host).unwrap().unwrap();
    while pair.to_one.send_inline(b"overtakes", &[]).unwrap() == Sent::Done {}
    late.write(0, &pattern(1, 2000));
    pair.to_one.send(late, 2000).unwrap();
    let mut last = Vec::new();
    until(&[&pair.one], "the fragment arrives", || {
        while let Some((_, bytes)) = pair.one.take() {
            last = bytes;
        }
        last.len() == 2000
    });
    assert!(last == pattern(1, 2000));
}

#[test]
fn unsent_fragments_are_freed_when_dropped() {
    let mut pair = Pair::new(&["btl_sm_fragments=1"]);
    pair.deliver(b"connected");
    for _ in 0..1000 {
        assert!(pair.to_one.alloc(20_000, FragmentKind::Host).unwrap().is_some());
    }
    pair.deliver(&pattern(0, 20_000));
}

#[test]
fn get_and_put_reach_registered_memory_and_nothing_beyond() {
    let mut pair = Pair::new(&[]);
    pair.deliver(b"connected");
    assert!(pair.to_one.capabilities().flags.contains(Flags::GET | Flags::PUT));
    let mut source = pattern(3, 300_000);
    let mut target = vec![0; 100_000];
    let region = |bytes: &mut Vec<u8>| Region {
        address: bytes.as_mut_ptr(),
        len: bytes.len(),
        location: Location::HOST,
        order: Order::None,
    };
    let (from, to) = (region(&mut source), region(&mut target));

    // SAFETY: both vectors outlive the test's operations, which are synchronous.
    let readable = unsafe { pair.to_one.register(from, Access::RemoteRead) }.unwrap().unwrap();
    // SAFETY: as above.
    let done = unsafe { pair.to_zero.get(&to.into(), &Remote::at(readable.handle(), 150_000), Token(1)) }.unwrap();
    assert_eq!(done, Transfer::Done);
    assert!(target == source[150_000..250_000]);
    for (offset, reason) in [(250_000, "beyond the end"), (u64::MAX - 10, "overflow")] {
        // SAFETY: as above.
        let error =
            unsafe { pair.to_zero.get(&to.into(), &Remote::at(readable.handle(), offset), Token(2)) }.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{reason}: {error}");
    }
    // SAFETY: as above.
    let refused = unsafe { pair.to_zero.put(&to.into(), &Remote::at(readable.handle(), 0), Token(3)) };
    assert!(refused.is_err(), "readable only");

    // SAFETY: as above.
    let writable = unsafe { pair.to_one.register(from, Access::RemoteWrite) }.unwrap().unwrap();
    target.fill(9);
    // SAFETY: as above.
    let done =
        unsafe { pair.to_zero.put(&region(&mut target).into(), &Remote::at(writable.handle(), 0), Token(4)) }.unwrap();
    assert_eq!(done, Transfer::Done);
    assert!(source[..100_000].iter().all(|&byte| byte == 9));
    assert!(source[100_000..] == pattern(3, 300_000)[100_000..]);
}

#[test]
fn a_get_from_unmapped_memory_is_unavailable_and_the_link_stays() {
    let mut pair = Pair::new(&[]);
    pair.deliver(b"connected");
    let mut target = vec![0_u8; 4096];
    let nobodys = Region {
        address: std::ptr::without_provenance_mut(4096),
        len: 4096,
        location: Location::HOST,
        order: Order::None,
    };
    let to = Region { address: target.as_mut_ptr(), len: target.len(), location: Location::HOST, order: Order::None };
    // SAFETY: only the kernel accesses the memory, and it refuses.
    let gone = unsafe { pair.to_one.register(nobodys, Access::RemoteRead) }.unwrap().unwrap();
    // SAFETY: the target belongs to this test.
    let error = unsafe { pair.to_zero.get(&to.into(), &Remote::at(gone.handle(), 0), Token(1)) }.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    pair.deliver(b"still there");
}

#[test]
fn single_copy_can_be_switched_off() {
    let mut pair = Pair::new(&["btl_sm_single_copy=none"]);
    pair.deliver(b"connected");
    assert!(!pair.to_one.capabilities().flags.intersects(Flags::GET | Flags::PUT));
}

#[test]
fn if_one_side_refuses_single_copy_neither_offers_it() {
    let zero = Process::new(0, 2, &["btl_sm_single_copy=none"]);
    let one = Process::new(1, 2, &[]);
    let _to_one = zero.connect(1, &one.btl.card());
    let mut to_zero = one.connect(0, &zero.btl.card());
    send(&[&zero, &one], &mut *to_zero, b"connect");
    until(&[&zero, &one], "the refusal is known", || {
        let mut byte = 0;
        let region = Region { address: &raw mut byte, len: 1, location: Location::HOST, order: Order::None };
        // SAFETY: the registration is not used.
        unsafe { to_zero.register(region, Access::RemoteRead) }.unwrap().is_none()
    });
    assert!(!to_zero.capabilities().flags.contains(Flags::GET));
}

#[test]
fn device_fragments_can_be_kept_beyond_the_upcall() {
    let mut pair = Pair::new(&["device_chunk_size=128K", "device_chunks=2"]);
    pair.one.heard.retain.set(true);
    let message = pattern(5, 100_000);
    for round in 0..3 {
        // There are only four chunks.
        for index in 0..4 {
            until(&[&pair.zero, &pair.one], "a device fragment is free", || {
                send_fragment(&mut *pair.to_one, &message, FragmentKind::Device)
            });
            let expected = index + 1;
            until(&[&pair.zero, &pair.one], "it arrives", || pair.one.heard.retained.borrow().len() == expected);
        }
        assert!(
            pair.to_one.alloc(100_000, FragmentKind::Device).unwrap().is_none(),
            "round {round}: all chunks must be kept"
        );
        assert!(
            pair.to_one.alloc(100_000, FragmentKind::Host).is_err()
                || pair.to_one.capabilities().max_send_size >= 100_000
        );
        for kept in pair.one.heard.retained.borrow_mut().drain(..) {
            let mut bytes = vec![0; kept.bytes().len()];
            kept.bytes().copy_to(&mut bytes);
            assert!(bytes == message);
            std::thread::spawn(move || drop(kept)).join().unwrap();
        }
    }
    // Small fragments have their own pool. Fragments that are not kept return at once.
    pair.one.heard.retain.set(false);
    for index in 0..100 {
        let message = pattern(index, 500);
        until(&[&pair.zero, &pair.one], "a small device fragment is free", || {
            send_fragment(&mut *pair.to_one, &message, FragmentKind::Device)
        });
        until(&[&pair.zero, &pair.one], "it arrives", || !pair.one.heard.messages.borrow().is_empty());
        assert!(pair.one.take().unwrap().1 == message);
    }
}

#[test]
fn both_may_connect_at_once_and_many_to_one() {
    for _ in 0..50 {
        let mut pair = Pair::new(&[]);
        let _ = pair.to_one.send_inline(b"a", b"").unwrap();
        let _ = pair.to_zero.send_inline(b"b", b"").unwrap();
        pair.deliver(b"from zero");
        send(&[&pair.zero, &pair.one], &mut *pair.to_zero, b"from one");
        until(&[&pair.zero, &pair.one], "the message arrives", || {
            pair.zero.take().is_some_and(|(_, b)| b == b"from one")
        });
        assert!(pair.zero.heard.failures.borrow().is_empty() && pair.one.heard.failures.borrow().is_empty());
    }
    let processes: Vec<_> = (0..6).map(|rank| Process::new(rank, 6, &[])).collect();
    let all: Vec<_> = processes.iter().collect();
    let mut endpoints: Vec<_> =
        (1..6).map(|rank| processes[rank as usize].connect(0, &processes[0].btl.card())).collect();
    for round in 0..100_u64 {
        for endpoint in &mut endpoints {
            send(&all, &mut **endpoint, &round.to_le_bytes());
        }
    }
    until(&all, "all messages arrive", || processes[0].heard.messages.borrow().len() == 500);
    let mut next = [0_u64; 6];
    while let Some((peer, bytes)) = processes[0].take() {
        assert_eq!(bytes, next[peer as usize].to_le_bytes());
        next[peer as usize] += 1;
    }
}

#[test]
fn upcalls_may_send_and_progress() {
    use cableway_btl::{Endpoint, Rank, Received, Upcalls};
    use std::cell::RefCell;
    struct Echo<'a> {
        process: &'a Process,
        endpoint: RefCell<Box<dyn Endpoint>>,
    }
    impl Upcalls for Echo<'_> {
        fn receive(&self, _peer: Rank, message: Received<'_>) {
            assert_eq!(self.process.btl.progress(self), 0, "a nested progress must return at once");
            let mut bytes = [0; 8];
            message.bytes().copy_to(&mut bytes);
            assert_eq!(self.endpoint.borrow_mut().send_inline(&bytes, &[]).unwrap(), Sent::Done);
        }
        fn completed(&self, _: Token, _: Result<(), Error>) {}
        fn peer_failed(&self, _: Rank, error: Error) {
            panic!("{error}");
        }
        fn peer_left(&self, _: Rank) {}
    }
    let Pair { zero, one, mut to_one, mut to_zero } = Pair::new(&[]);
    // A message can arrive before its receiver may send, which does not matter here.
    send(&[&zero, &one], &mut *to_zero, b"connected");
    until(&[&zero, &one], "it arrives", || zero.take().is_some());
    let echo = Echo { process: &one, endpoint: RefCell::new(to_zero) };
    for index in 0..1000_u64 {
        while to_one.send_inline(&index.to_le_bytes(), &[]).unwrap() == Sent::Busy {
            zero.progress();
            one.btl.progress(&echo);
        }
        until(&[&zero], "the echo arrives", || {
            one.btl.progress(&echo);
            zero.take().is_some_and(|(_, bytes)| bytes == index.to_le_bytes())
        });
    }
}

#[test]
fn an_offer_is_taken_once() {
    let mut pair = Pair::new(&[]);
    pair.deliver(b"connected");
    send(&[&pair.zero, &pair.one], &mut *pair.to_zero, b"both ways");
    let mut open = Vec::new();
    while let Some(offer) = pair.to_one.offer() {
        assert!(!open.contains(&offer));
        open.push(offer);
    }
    assert_eq!(open.len(), 8);
    assert!(!pair.to_one.claim(open[0]), "only the peer can claim an own offer");
    assert!(pair.to_zero.claim(open[0]));
    assert!(!pair.to_zero.claim(open[0]));
    assert!(!pair.to_one.withdraw(open[0]).unwrap());
    assert!(pair.to_one.withdraw(open[1]).unwrap());
    assert!(!pair.to_zero.claim(open[1]));
    let again = [pair.to_one.offer().unwrap(), pair.to_one.offer().unwrap()];
    assert!(pair.to_one.offer().is_none());
    for old in &open[..2] {
        assert!(!pair.to_zero.claim(*old), "an old offer must not be claimed after its word is reused");
    }
    assert!(again.into_iter().all(|offer| pair.to_zero.claim(offer)));
    for bits in [0, 7, 8, u64::MAX, 1 << 63] {
        assert!(!pair.to_zero.claim(Offer(bits)), "invalid bits are no offer");
    }
    // The other direction has its own words.
    let back = pair.to_zero.offer().unwrap();
    assert!(pair.to_one.claim(back));
    pair.deliver(b"and the link works");
}
