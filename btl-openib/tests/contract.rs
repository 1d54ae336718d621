//! What the BTL contract promises, on connections of one process with itself.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cableway_btl::{
    Access, Endpoint, Error, Flags, FragmentKind, MAX_HEADER, Received, Remote, RemoteHandle, Sent, Token, Upcalls,
};
use common::{
    Node, Pair, connect, has_device, is_iwarp, is_managed, node, open, pair, pattern, region, send, transfer, until,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_nodes::{PATIENCE, try_send};

#[test]
fn messages_of_every_size_arrive_in_order() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let endpoint = &mut *to_b;
    let (limit, longest) = (endpoint.capabilities().inline_limit, endpoint.capabilities().max_send_size);
    let sizes = [0, 1, 7, 8, 9, 100, 128, 129, 255, 1000, limit - 1, limit, limit + 1, 12288, longest - 1, longest];
    for round in 0..10 {
        for (index, &size) in sizes.iter().enumerate() {
            let message = pattern(size, round * 100 + index as u64);
            let header = size.min(MAX_HEADER);
            send(&[&a, &b], endpoint, &message[..header], &message[header..]);
        }
    }
    until(&[&a, &b], "all arrive", || b.received() == 10 * sizes.len());
    for (count, (from, message)) in b.seen.messages.lock().iter().enumerate() {
        let (round, index) = (count / sizes.len(), count % sizes.len());
        assert_eq!(*from, 0);
        assert!(*message == pattern(sizes[index], (round * 100 + index) as u64), "message {count}");
    }
}

/// The lists that the tests below go by: one queue of a peer's own; small ones of its own beside large ones that all
/// share; three of which the first takes a header alone.
const LISTS: [&str; 3] = ["P,16K,16,4,8", "P,2K,32,8,16:S,64K,64,16,16", "P,256,16,4,4:S,4K,32,8,8:S,64K,32,8,8"];

fn listed(list: &str) -> String {
    format!("btl_openib_receive_queues={list}")
}

fn sent(endpoint: &mut dyn Endpoint, message: &[u8]) -> bool {
    try_send(endpoint, message, b"").unwrap()
}

/// Small messages overtake large ones on their queue pairs, and come after them.
#[test]
fn messages_keep_their_order_across_queues() {
    if !has_device() {
        return;
    }
    for list in LISTS {
        let Pair { a, b, mut to_b, mut to_a } = pair(&[&listed(list)]);
        let nodes = [&a, &b];
        let longest = to_b.capabilities().max_send_size;
        let limit = to_b.capabilities().inline_limit;
        let sizes = [longest, 0, 8, 256, longest - 1, 257, 2048, 2049, limit, 1, 4097, 10, longest, 100];
        let count = 10 * sizes.len();
        let size = |n: usize| sizes[n % sizes.len()];
        let (mut forth, mut back) = (0, 0);
        let one = |endpoint: &mut dyn Endpoint, n: &mut usize| {
            if *n < count && sent(endpoint, &pattern(size(*n), *n as u64)) {
                *n += 1;
            }
        };
        until(&nodes, "all are sent", || {
            one(&mut *to_b, &mut forth);
            one(&mut *to_a, &mut back);
            forth == count && back == count
        });
        until(&nodes, "all arrive", || a.received() == count && b.received() == count);
        for (node, from) in [(&a, 1), (&b, 0)] {
            for (n, (sender, message)) in node.seen.messages.lock().iter().enumerate() {
                assert_eq!(*sender, from);
                assert!(*message == pattern(size(n), n as u64), "{list}: message {n} of {} bytes", size(n));
            }
        }
        assert_eq!((a.failures(), b.failures()), (0, 0), "{list}");
        // A goodbye comes after what was sent before it, by whichever queue pair.
        for n in 0..3 {
            send(&nodes, &mut *to_a, &pattern(longest, n), b"");
            send(&nodes, &mut *to_a, b"small", b"");
        }
        until(&nodes, "all is flushed", || b.btl.finalize());
        drop((to_a, b));
        until(&[&a], "it is reported", || a.departures() == 1);
        assert_eq!((a.received(), a.failures()), (count + 6, 0), "{list}");
        drop(to_b);
    }
}

/// Each queue has its own window; a peer that does not look leaves the others' free.
#[test]
fn a_full_queue_leaves_the_others_free() {
    if !has_device() {
        return;
    }
    if is_managed() {
        return println!("skipped: there is one queue where librdmacm makes connections");
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[&listed(LISTS[2])]);
    let nodes = [&a, &b];
    send(&nodes, &mut *to_b, b"first", b"");
    until(&nodes, "it arrives", || b.received() == 1);
    let mut all = 1;
    for (len, most) in [(60_000, 8), (3000, 8), (100, 16)] {
        let mut taken = 0;
        until(&[&a], "the queue is full", || {
            while sent(&mut *to_b, &pattern(len, taken as u64)) {
                taken += 1;
            }
            taken + 1 >= most
        });
        assert!(taken <= most, "{taken} of {len} bytes where {most} may wait");
        all += taken;
    }
    let out = to_b.alloc(60_000, FragmentKind::Host).unwrap();
    assert!(out.is_none(), "that queue is full still");
    until(&nodes, "all arrive", || b.received() == all);
    // Fragments count among what waits, each in its queue.
    let mut out = Vec::new();
    until(&nodes, "there is room again", || {
        out.extend(to_b.alloc(60_000, FragmentKind::Device).unwrap());
        out.len() == 8
    });
    assert!(to_b.alloc(60_000, FragmentKind::Host).unwrap().is_none());
    assert!(sent(&mut *to_b, &pattern(100, 0)));
    drop(out);
    assert!(to_b.alloc(60_000, FragmentKind::Host).unwrap().is_some());
}

#[test]
fn puts_and_gets_go_beside_every_list() {
    if !has_device() {
        return;
    }
    for list in LISTS {
        let Pair { a, b, mut to_b, mut to_a } = pair(&[&listed(list)]);
        let nodes = [&a, &b];
        let len = 1 << 20;
        let (mut there, mut here) = (pattern(len, 1), vec![0; len]);
        // SAFETY: the memory outlives the registration and is not written to.
        let registration = unsafe { to_a.register(region(&mut there), Access::RemoteRead) }.unwrap().unwrap();
        let handle = *registration.handle();
        transfer(&nodes, &a, 1, |token| {
            // SAFETY: nobody looks at the destination before it is done.
            unsafe { to_b.get(&region(&mut here).into(), &Remote::at(&handle, 0), token) }
        });
        assert!(here == there, "{list}");
    }
}

/// Where each peer has buffers of its own, none ever finds none: the device has no cause to hold a sender back. More
/// peers' buffers than the completion queue was made for have it grow.
#[test]
fn buffers_of_their_own_are_there_for_every_peer() {
    if !has_device() {
        return;
    }
    // Over iWARP, greeting and goodbye have one each.
    let own = if is_iwarp() { 510 } else { 512 };
    let set = ["btl_openib_receive_queues=P,4K,512,128,64", "btl_openib_cq_size=256"];
    let nodes: Vec<Node> = (0..4).map(|rank| node(rank, 4, &set)).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    let mut endpoints: Vec<_> = nodes[1..].iter().map(|from| connect(from, &nodes[0])).collect();
    for endpoint in &mut endpoints {
        send(&all, &mut **endpoint, b"first", b"");
    }
    until(&all, "they arrive", || nodes[0].received() == 3);
    // Rank 0 does not look, and every buffer of its is filled.
    let mut expected = 3;
    for (from, endpoint) in nodes[1..].iter().zip(&mut endpoints) {
        let mut taken = 0;
        until(&[from], "all its buffers are full", || {
            while sent(&mut **endpoint, &pattern(1000, taken as u64)) {
                taken += 1;
            }
            taken >= own - 1
        });
        assert!(taken <= own, "{taken}");
        expected += taken;
    }
    until(&all, "all arrive", || nodes[0].received() == expected);
    assert_eq!(nodes.iter().map(Node::failures).sum::<usize>(), 0);
}

#[test]
fn processes_of_other_lists_do_not_meet() {
    if !has_device() {
        return;
    }
    if is_managed() {
        return println!("skipped: of each list the last is used where librdmacm makes connections");
    }
    let (a, b) = (node(0, 2, &[&listed(LISTS[1])]), node(1, 2, &[]));
    assert!(a.connect(&b).is_empty() && b.connect(&a).is_empty());
}

/// A device may have no shared queues where others of the job have.
#[test]
fn buffers_of_its_own_meet_shared_ones() {
    const OWN: &str = "P,256,16,4,4:P,64K,18,4,8";
    const SHARED: &str = "P,256,16,4,4:S,64K,64,16,16";
    if !has_device() {
        return;
    }
    for lists in [[OWN, SHARED], [SHARED, OWN]] {
        let [a, b] = [0, 1].map(|rank| node(rank, 2, &[&listed(lists[rank as usize])]));
        let (mut to_b, mut to_a) = (connect(&a, &b), connect(&b, &a));
        let nodes = [&a, &b];
        for n in 0..100 {
            let size = [10, 60_000, 256, 257][n % 4];
            send(&nodes, &mut *to_b, &pattern(size, n as u64), b"");
            send(&nodes, &mut *to_a, &pattern(size, n as u64), b"");
        }
        until(&nodes, "all arrive", || a.received() == 100 && b.received() == 100);
        for node in nodes {
            for (n, (_, message)) in node.seen.messages.lock().iter().enumerate() {
                assert!(*message == pattern([10, 60_000, 256, 257][n % 4], n as u64), "message {n}");
            }
        }
        assert_eq!((a.failures(), b.failures()), (0, 0));
        until(&nodes, "all is flushed", || b.btl.finalize());
        until(&nodes, "it is reported", || a.departures() == 1);
        assert_eq!(a.failures(), 0);
    }
}

#[test]
fn both_may_connect_at_once() {
    if !has_device() {
        return;
    }
    for _ in 0..5 {
        let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
        let (mut sent_a, mut sent_b) = (false, false);
        until(&[&a, &b], "both are connected", || {
            sent_a = sent_a || to_b.send_inline(b"from a", b"").unwrap() == Sent::Done;
            sent_b = sent_b || to_a.send_inline(b"from b", b"").unwrap() == Sent::Done;
            sent_a && sent_b
        });
        until(&[&a, &b], "both messages arrive", || a.received() == 1 && b.received() == 1);
        assert_eq!(b.seen.messages.lock()[0], (0, b"from a".to_vec()));
        assert_eq!(a.seen.messages.lock()[0], (1, b"from b".to_vec()));
    }
}

#[test]
fn a_connection_is_made_while_the_peer_computes() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    until(&[&a], "a message is taken", || to_b.send_inline(b"hello", b"").unwrap() == Sent::Done);
    assert_eq!(b.received(), 0);
    until(&[&b], "it arrives", || b.received() == 1);
}

#[test]
fn many_messages_do_not_need_the_receiver_to_answer() {
    if !has_device() {
        return;
    }
    // More than any window, both ways, on few buffers.
    let Pair { a, b, mut to_b, mut to_a } = pair(&["btl_openib_receive_queues=S,4K,16,4,8"]);
    let count = 2000_u32;
    let (mut forth, mut back) = (0, 0);
    until(&[&a, &b], "all are sent", || {
        if forth < count && to_b.send_inline(&forth.to_le_bytes(), b"forth").unwrap() == Sent::Done {
            forth += 1;
        }
        if back < count && to_a.send_inline(&back.to_le_bytes(), b"back").unwrap() == Sent::Done {
            back += 1;
        }
        forth == count && back == count
    });
    until(&[&a, &b], "all arrive", || a.received() == count as usize && b.received() == count as usize);
    for node in [&a, &b] {
        for (expected, (_, message)) in (0_u32..).zip(node.seen.messages.lock().iter()) {
            assert_eq!(message[..4], expected.to_le_bytes());
        }
    }
}

#[test]
fn a_peer_that_does_not_progress_makes_the_link_busy() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["btl_openib_receive_queues=S,64K,64,8,16"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    let mut sent = 0;
    while to_b.send_inline(&[], &[7; 100]).unwrap() == Sent::Done {
        sent += 1;
        a.progress();
        assert!(sent <= 16, "the window is 16");
    }
    assert!(to_b.alloc(4096, FragmentKind::Host).unwrap().is_none());
    until(&[&a, &b], "what was taken arrives", || b.received() == 1 + sent);
    until(&[&a, &b], "the link is free again", || to_b.send_inline(&[], &[7; 100]).unwrap() == Sent::Done);
}

#[test]
fn fragments_given_back_make_room_again() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } =
        pair(&["btl_openib_receive_queues=S,64K,64,8,16", "btl_openib_send_depth=31"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    for _ in 0..3 {
        let mut out = Vec::new();
        while let Some(fragment) = to_b.alloc(30_000, FragmentKind::Device).unwrap() {
            out.push(fragment);
            assert!(out.len() <= 16);
        }
        assert!(out.len() >= 15);
        assert_eq!(to_b.send_inline(b"no room", b"").unwrap(), Sent::Busy);
    }
    // What was taken is always sent, in the order of the calls.
    let first = to_b.alloc(100, FragmentKind::Host).unwrap().unwrap();
    let second = to_b.alloc(100, FragmentKind::Host).unwrap().unwrap();
    for (mut fragment, text) in [(second, b"second taken"), (first, b"first taken!")] {
        fragment.write(0, text);
        to_b.send(fragment, text.len()).unwrap();
    }
    until(&[&a, &b], "they arrive", || b.received() == 3);
    assert_eq!(b.seen.messages.lock()[1].1, b"second taken");
    assert!(to_b.alloc(to_b.capabilities().max_send_size + 1, FragmentKind::Host).is_err());
}

#[test]
fn puts_and_gets_move_what_they_name() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    assert!(to_b.capabilities().flags.contains(Flags::PUT | Flags::GET));
    let len = 3 << 20;
    let mut there = vec![0; len + 100];
    let mut here = pattern(len, 1);
    // SAFETY: the memory outlives the registration and is only looked at after the transfers.
    let registration = unsafe { to_a.register(region(&mut there), Access::RemoteWrite) }.unwrap().unwrap();
    let handle = *registration.handle();
    transfer(&nodes, &a, 1, |token| {
        // SAFETY: the source outlives the put and is not written to.
        unsafe { to_b.put(&region(&mut here).into(), &Remote::at(&handle, 50), token) }
    });
    // Visible once the put is done here and a later message has arrived there.
    send(&nodes, &mut *to_b, b"done", b"");
    until(&nodes, "the message arrives", || b.received() == 1);
    drop(registration);
    assert!(there[50..50 + len] == here);
    assert!(there[..50].iter().chain(&there[50 + len..]).all(|&byte| byte == 0));

    // SAFETY: as above.
    let registration = unsafe { to_a.register(region(&mut there), Access::RemoteRead) }.unwrap().unwrap();
    let handle = *registration.handle();
    let mut fetched = vec![0; len];
    transfer(&nodes, &a, 2, |token| {
        // SAFETY: the destination outlives the get, and nobody looks at it before.
        unsafe { to_b.get(&region(&mut fetched).into(), &Remote::at(&handle, 50), token) }
    });
    assert!(fetched == here);
    assert!(a.seen.completed.lock().iter().all(|(_, result)| result.is_ok()));
    assert_eq!((a.failures(), b.failures()), (0, 0));
}

/// The same address is other memory after it was unmapped and mapped again, or discarded. A registration kept too long
/// would move the old pages.
#[test]
fn memory_mapped_again_is_the_memory_that_is_moved() {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    let len = 1 << 20;
    // A fixed mapping takes the place of the old one in one step, so that no other thread gets in between.
    let map = |at: *mut std::ffi::c_void| {
        let flags = if at.is_null() { MapFlags::PRIVATE } else { MapFlags::PRIVATE | MapFlags::FIXED };
        // SAFETY: at an address of the kernel's choice, or in place of a mapping of ours that nothing refers to.
        unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap()
    };
    let (source, target) = (map(std::ptr::null_mut()), map(std::ptr::null_mut()));
    for round in 0..9 {
        // SAFETY: both mappings are ours, `len` bytes long, and nothing else refers to them.
        let (from, to) = unsafe {
            (std::slice::from_raw_parts_mut(source.cast(), len), std::slice::from_raw_parts_mut(target.cast(), len))
        };
        from.copy_from_slice(&pattern(len, round));
        // SAFETY: the memory outlives the registration.
        let registration = unsafe { to_a.register(region(from), Access::RemoteRead) }.unwrap().unwrap();
        let handle = *registration.handle();
        transfer(&nodes, &a, round, |token| {
            // SAFETY: nobody looks at it before it is done.
            unsafe { to_b.get(&region(to).into(), &Remote::at(&handle, 0), token) }
        });
        drop(registration);
        assert!(to == pattern(len, round), "round {round}");
        // As it is; other memory; other pages of the same.
        for at in [source, target] {
            match round % 3 {
                0 => {}
                1 => assert_eq!(map(at), at),
                // SAFETY: ours, and nothing refers to what it holds.
                _ => unsafe { madvise(at, len, Advice::LinuxDontNeed) }.unwrap(),
            }
        }
    }
    for at in [source, target] {
        // SAFETY: ours, and the slices are not used any more.
        unsafe { munmap(at, len) }.unwrap();
    }
}

#[test]
fn what_lies_beyond_a_registration_is_refused_here() {
    if !has_device() {
        return;
    }
    let Pair { mut to_b, mut to_a, a, b } = pair(&[]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    let (mut target, mut source) = (vec![0; 100], vec![1; 101]);
    // SAFETY: the target outlives the registration and is not touched.
    let registration = unsafe { to_a.register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    for (len, offset) in [(101, 0), (1, 100), (2, u64::MAX)] {
        // SAFETY: nothing is started.
        let result = unsafe {
            to_b.put(&region(&mut source[..len]).into(), &Remote::at(registration.handle(), offset), Token(0))
        };
        assert!(result.is_err(), "{len} bytes at {offset}");
    }
    let alien = RemoteHandle::new(b"of another transport").unwrap();
    // SAFETY: nothing is started.
    assert!(unsafe { to_b.put(&region(&mut source).into(), &Remote::at(&alien, 0), Token(0)) }.is_err());
}

#[test]
fn reaching_for_what_was_never_registered_costs_the_connection() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    send(&nodes, &mut *to_b, b"first", b"");
    let (mut target, mut source) = (vec![0; 1000], vec![1; 1000]);
    // SAFETY: the target outlives the registration, which is over before it is used.
    let registration = unsafe { to_a.register(region(&mut target), Access::RemoteWrite) }.unwrap().unwrap();
    let handle = *registration.handle();
    drop(registration);
    // SAFETY: the source outlives the pair and is not written to.
    transfer(&nodes, &a, 1, |token| unsafe { to_b.put(&region(&mut source).into(), &Remote::at(&handle, 0), token) });
    // Over iWARP a write is done when the source may be written to.
    assert!(is_iwarp() || a.seen.completed.lock()[0].1.is_err());
    until(&nodes, "both know", || a.failures() == 1 && b.failures() == 1);
    assert!(target.iter().all(|&byte| byte == 0));
    assert!(to_b.send_inline(b"x", b"").is_err());
    for _ in 0..1000 {
        a.progress();
        b.progress();
    }
    assert_eq!((a.failures(), b.failures()), (1, 1), "said once");
}

#[test]
fn kept_messages_stay_as_they_are() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["btl_openib_receive_queues=S,8K,32,8,16"]);
    let nodes = [&a, &b];
    b.seen.keep.store(true, Ordering::Relaxed);
    for n in 0..200 {
        send(&nodes, &mut *to_b, &pattern(3000, n), b"");
    }
    until(&nodes, "all arrive", || b.received() == 200);
    let kept = std::mem::take(&mut *b.seen.retained.lock());
    assert!(kept.len() >= 8, "{} were kept", kept.len());
    assert!(kept.len() <= 24, "{} were kept: senders starve", kept.len());
    for (n, message) in (0..).zip(&kept) {
        let mut bytes = vec![0; message.bytes().len()];
        message.bytes().copy_to(&mut bytes);
        assert!(bytes == pattern(3000, n), "message {n} was overwritten");
    }
    // From any thread, and the buffers are used again.
    std::thread::spawn(move || drop(kept)).join().unwrap();
    for n in 0..200 {
        send(&nodes, &mut *to_b, &pattern(3000, n), b"");
    }
    until(&nodes, "they arrive", || b.received() == 400);
    assert!(b.seen.retained.lock().len() >= 8);
}

#[test]
fn an_orderly_end_is_no_failure() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, mut to_a } = pair(&[]);
    let nodes = [&a, &b];
    send(&nodes, &mut *to_b, b"ping", b"");
    until(&nodes, "it arrives", || b.received() == 1);
    send(&nodes, &mut *to_a, b"last words", b"");
    until(&nodes, "all is flushed", || b.btl.finalize());
    drop(to_a);
    drop(b);
    until(&[&a], "it is reported", || a.departures() == 1);
    assert_eq!(a.received(), 1, "the last message came before");
    assert!(matches!(to_b.send_inline(b"too late", b""), Err(Error::PeerLeft { peer: 1, .. })));
    assert!(!a.btl.hears(1));
    for _ in 0..10_000 {
        a.progress();
    }
    assert_eq!((a.failures(), a.departures()), (0, 1));
    drop(to_b);
    assert!(a.btl.finalize());
}

/// Goodbyes are reported like all else, and one to each of thousands of peers may be more than there is room for.
#[test]
fn goodbyes_wait_until_there_is_room_for_them() {
    const MANY: isize = 1 << 20;
    if !has_device() {
        return;
    }
    let transport = open(0, 3, &[]);
    let a = Node::of(0, Arc::clone(&transport) as _);
    let (b, c) = (node(1, 3, &[]), node(2, 3, &[]));
    let nodes = [&a, &b, &c];
    let mut endpoints = [connect(&a, &b), connect(&a, &c)];
    for endpoint in &mut endpoints {
        send(&nodes, &mut **endpoint, b"hello", b"");
    }
    until(&nodes, "they arrive", || b.received() == 1 && c.received() == 1);
    transport.await_completions(MANY);
    assert!(!a.btl.finalize());
    for endpoint in &mut endpoints {
        assert_eq!(endpoint.send_inline(b"x", b"").unwrap(), Sent::Busy, "it has said no goodbye yet");
    }
    transport.await_completions(-MANY);
    until(&nodes, "all is flushed", || a.btl.finalize());
    until(&nodes, "they hear it", || b.departures() == 1 && c.departures() == 1);
    assert_eq!((b.failures(), c.failures()), (0, 0));
}

#[test]
fn a_link_closed_before_it_was_connected_is_an_error_to_the_peer() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a } = pair(&[]);
    drop(to_a);
    until(&[&a, &b], "an error", || to_b.send_inline(b"x", b"").is_err());
    until(&[&a, &b], "a report", || a.departures() == 1);
    assert_eq!((a.failures(), b.failures()), (0, 0));
}

/// It goes on, and may be reached another way: that it has left would be a lie.
#[test]
fn who_could_not_connect_has_not_left() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a } = pair(&[]);
    b.btl.break_off(0);
    until(&[&b], "it is given up", || b.failures() == 1);
    drop(to_a);
    until(&[&a, &b], "an error", || to_b.send_inline(b"x", b"").is_err());
    until(&[&a, &b], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0].1, Error::Unreachable { peer: 1, .. }));
    assert_eq!((a.departures(), b.failures()), (0, 1));
}

/// At whatever point: to make a queue pair takes an emulated machine about 100 ms.
#[test]
fn who_ends_while_a_connection_is_made_has_left() {
    const ROUNDS: u32 = 8;
    if !has_device() {
        return;
    }
    for round in 0..=ROUNDS {
        // Who asks somebody that has left in silence waits for an answer as long as this, but no longer.
        let Pair { a, b, mut to_b, mut to_a } = pair(&["peer_timeout=4s"]);
        to_b.connect().unwrap();
        if round % 2 == 1 {
            to_a.connect().unwrap();
        }
        match round {
            ROUNDS => until(&[&b], "it is connected", || b.btl.hears(0)),
            _ => std::thread::sleep(round * Duration::from_millis(25)),
        }
        until(&[&b], "all is flushed", || b.btl.finalize());
        drop(to_a);
        drop(b);
        until(&[&a], "a report", || a.departures() + a.failures() == 1);
        // Where b's thread had ended before a's datagram came, nobody can tell a what became of b.
        let error = a.seen.failed.lock().first().map(|(_, error)| error.clone());
        assert!(matches!(error, None | Some(Error::Unreachable { .. })), "{error:?}");
        assert!(error.is_none() || round < ROUNDS, "b was connected, and said goodbye: {error:?}");
        assert!(to_b.send_inline(b"x", b"").is_err());
    }
}

#[test]
fn a_peer_that_was_never_there_is_an_error() {
    if !has_device() {
        return;
    }
    let (a, b) = (node(0, 2, &["peer_timeout=2s"]), node(1, 2, &[]));
    let mut to_b = connect(&a, &b);
    drop(b);
    until(&[&a], "an error", || to_b.send_inline(b"x", b"").is_err());
    until(&[&a], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0].1, Error::Unreachable { peer: 1, .. }));
}

/// Whatever was sent before a connection breaks, the two ends together know what has to be sent again.
#[test]
fn what_a_broken_connection_leaves_is_what_did_not_come() {
    if !has_device() {
        return;
    }
    // The peer tells of every 16th; of every fourth of the smaller ones, the twelfth of which is the 15th of all.
    for (list, told) in [("S,8K,64,8,32", 16), ("P,1K,64,16,4:S,8K,64,8,32", 15)] {
        what_is_left(list, told);
    }
}

fn what_is_left(list: &str, told: u64) {
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[&listed(list)]);
    let sizes = [10, 128, 129, 3000];
    let messages: Vec<Vec<u8>> = (0..40).map(|n| pattern(sizes[n % sizes.len()], n as u64)).collect();
    let take = |to_b: &mut dyn Endpoint, message: &[u8]| {
        until(&[&a], "it is taken", || to_b.send_inline(message, b"").unwrap() == Sent::Done);
    };
    for (n, message) in messages.iter().enumerate() {
        if n < 20 {
            send(&[&a, &b], &mut *to_b, message, b"");
        } else {
            take(&mut *to_b, message);
        }
        if n == 19 {
            until(&[&a, &b], "they arrive", || b.received() == 20);
        }
    }
    let mut fragment = to_b.alloc(5000, FragmentKind::Device).unwrap().unwrap();
    fragment.write(0, &pattern(5000, 99));
    assert!(a.btl.remains(1).is_none(), "nothing is broken");
    for (node, peer) in [(&a, 1), (&b, 0)] {
        node.btl.break_off(peer);
        until(&[node], "a report", || node.failures() == 1);
    }
    to_b.send(fragment, 5000).unwrap();
    let all = [&messages[..], &[pattern(5000, 99)]].concat();
    let (here, there) = (a.btl.remains(1).unwrap(), b.btl.remains(0).unwrap());
    assert_eq!(there.received as usize, b.received());
    assert!(here.delivered <= there.received && there.received <= 40, "{} {}", here.delivered, there.received);
    assert!(here.delivered >= told, "the peer had told what it consumed: {}", here.delivered);
    assert_eq!(here.uncertain.len(), all.len() - here.delivered as usize);
    for (left, sent) in here.uncertain.iter().zip(&all[here.delivered as usize..]) {
        assert!(**left == **sent);
    }
    assert_eq!((here.received, there.uncertain.len()), (0, 0));
    assert!(a.btl.remains(1).is_none() && b.btl.remains(0).is_none(), "told once");
    assert!(to_b.alloc(100, FragmentKind::Host).is_err());
}

/// Whoever knows it first: a message may come before the thread that makes connections has heard that it is made.
#[test]
fn a_connection_given_up_as_it_is_made_is_given_up_at_both_ends() {
    if !has_device() {
        return;
    }
    for _ in 0..5 {
        let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["peer_timeout=4s"]);
        to_b.connect().unwrap();
        b.btl.break_off(0);
        until(&[&b], "a report", || b.failures() == 1);
        until(&[&a, &b], "the peer hears of it", || a.failures() + a.departures() == 1);
    }
}

/// What tells of a peer on another node, where no system watches it.
#[test]
fn a_connected_peer_whose_device_falls_silent_is_an_error() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&["peer_timeout=4s"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    b.btl.break_off(0);
    until(&[&b], "a report", || b.failures() == 1);
    until(&[&a], "a report", || a.failures() == 1);
    assert!(matches!(a.seen.failed.lock()[0].1, Error::PeerGone { peer: 1, .. }));
    assert!(to_b.send_inline(b"x", b"").is_err());
}

/// Sleeps until the transport has something. Nothing else wakes it: a sign that is missed costs a minute, which is more
/// than these tests have.
fn sleep_until(node: &Node, what: &str, mut done: impl FnMut() -> bool) -> usize {
    let (start, mut sleeps) = (Instant::now(), 0);
    while !done() {
        assert!(start.elapsed() < PATIENCE, "woken, but not for {what}");
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
fn who_sleeps_misses_no_message() {
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
                until(&[node], "it is taken", || link.send_inline(b"ping", b"").unwrap() == Sent::Done);
            };
            if first {
                answer(link);
            }
            slept += sleep_until(node, "a message", || node.received() > already + round);
            // Before, while and after the other one arms.
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
    assert!(slept > ROUNDS / 10, "{slept} sleeps: this tests nothing");
    assert_eq!((a.failures(), b.failures()), (0, 0));
}

#[test]
fn who_sleeps_hears_of_an_end() {
    if !has_device() {
        return;
    }
    let Pair { a, b, mut to_b, to_a } = pair(&["peer_timeout=4s"]);
    send(&[&a, &b], &mut *to_b, b"first", b"");
    until(&[&a, &b], "it arrives", || b.received() == 1);
    // Found out by the thread that looks after silent peers, and told by a completion.
    b.btl.break_off(0);
    until(&[&b], "a report", || b.failures() == 1);
    let slept = sleep_until(&a, "the peer's device falls silent", || a.failures() == 1) > 0;
    // Over iWARP the kernel there says so at once.
    assert!(slept || is_iwarp());
    drop((to_a, to_b));

    let (a, b) = (node(0, 2, &["peer_timeout=2s"]), node(1, 2, &[]));
    let mut to_b = connect(&a, &b);
    drop(b);
    // Found out by that thread alone.
    to_b.connect().unwrap();
    assert!(sleep_until(&a, "nobody answers", || a.failures() == 1) > 0);
}

/// Of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn who_sleeps_takes_little_of_the_processor() {
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
            until(&[&a], "it is taken", || to_b.send_inline(b"second", b"").unwrap() == Sent::Done);
        });
        let before = processor_time();
        sleep_until(&b, "a message", || b.received() == 2);
        let used = processor_time() - before;
        assert!(used < wait / 4, "{used:?} of the processor");
    });
}

#[test]
fn progress_within_an_upcall_returns_at_once() {
    if !has_device() {
        return;
    }
    struct Reentrant<'a>(&'a Node, AtomicUsize);
    impl Upcalls for Reentrant<'_> {
        fn receive(&self, _: u32, _: Received<'_>) {
            assert_eq!(self.0.btl.progress(self), 0);
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        fn completed(&self, _: Token, _: Result<(), Error>) {}
        fn peer_failed(&self, _: u32, _: Error) {}
        fn peer_left(&self, _: u32) {}
    }
    let Pair { a, b, mut to_b, to_a: _to_a } = pair(&[]);
    let upcalls = Reentrant(&b, AtomicUsize::new(0));
    until(&[&a], "it is taken", || {
        b.btl.progress(&upcalls);
        to_b.send_inline(b"first", b"").unwrap() == Sent::Done
    });
    until(&[&a], "it arrives", || {
        b.btl.progress(&upcalls);
        upcalls.1.load(Ordering::Relaxed) == 1
    });
}

#[test]
fn four_processes_reach_each_other() {
    if !has_device() {
        return;
    }
    let nodes: Vec<Node> = (0..4).map(|rank| node(rank, 4, &[])).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    let mut endpoints = Vec::new();
    for from in &nodes {
        for to in nodes.iter().filter(|to| to.rank != from.rank) {
            endpoints.push((from.rank, connect(from, to)));
        }
    }
    for round in 0..50_u32 {
        for (from, endpoint) in &mut endpoints {
            send(&all, &mut **endpoint, &from.to_le_bytes(), &round.to_le_bytes());
        }
    }
    until(&all, "all arrive", || nodes.iter().all(|node| node.received() == 150));
    for node in &nodes {
        for peer in (0..4).filter(|&peer| peer != node.rank) {
            let messages = node.seen.messages.lock();
            let mine = messages.iter().filter(|(from, _)| *from == peer);
            for (round, (_, message)) in (0_u32..).zip(mine) {
                assert_eq!(message[..4], peer.to_le_bytes());
                assert_eq!(message[4..], round.to_le_bytes());
            }
        }
    }
}
