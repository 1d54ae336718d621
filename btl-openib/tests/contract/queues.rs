//! Receive queues: their order, windows and buffers.

use crate::common::{
    Node, Pair, connect, has_device, is_iwarp, is_managed, node, pair, pattern, region, send, transfer, until,
};
use cableway_btl::{Access, Endpoint, FragmentKind, Remote};
use test_nodes::try_send;

/// The lists under test: one queue per peer; small buffers per peer beside large shared ones; three queues, of which
/// the first holds only a header.
const LISTS: [&str; 3] = ["P,16K,16,4,8", "P,2K,32,8,16:S,64K,64,16,16", "P,256,16,4,4:S,4K,32,8,8:S,64K,32,8,8"];

pub(crate) fn listed(list: &str) -> String {
    format!("btl_openib_receive_queues={list}")
}

fn sent(endpoint: &mut dyn Endpoint, message: &[u8]) -> bool {
    try_send(endpoint, message, b"").unwrap()
}

/// Small messages may overtake large ones on their queue pairs, and are delivered after them.
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
        // A goodbye follows all earlier messages of every queue pair.
        for n in 0..3 {
            send(&nodes, &mut *to_a, &pattern(longest, n), b"");
            send(&nodes, &mut *to_a, b"small", b"");
        }
        until(&nodes, "all is flushed", || b.btl.finalize());
        drop((to_a, b));
        until(&[&a], "the departure is reported", || a.departures() == 1);
        assert_eq!((a.received(), a.failures()), (count + 6, 0), "{list}");
        drop(to_b);
    }
}

/// Each queue has its own window. A peer that does not poll leaves the other queues free.
#[test]
fn a_full_queue_leaves_the_others_free() {
    if !has_device() {
        return;
    }
    if is_managed() {
        return println!("skipped: librdmacm uses only one queue");
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
        assert!(taken <= most, "{taken} of {len} bytes exceed the window of {most}");
        all += taken;
    }
    let out = to_b.alloc(60_000, FragmentKind::Host).unwrap();
    assert!(out.is_none(), "the queue must still be full");
    until(&nodes, "all arrive", || b.received() == all);
    // Fragments count as waiting messages of their queue.
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
fn puts_and_gets_work_with_every_list() {
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

/// With its own buffers for each peer, a receiver always has one, so the device never delays a sender. The completion
/// queue grows for more peers than it was made for.
#[test]
fn each_peer_has_its_own_buffers() {
    if !has_device() {
        return;
    }
    // Over iWARP, the greeting and the goodbye need one buffer each.
    let own = if is_iwarp() { 510 } else { 512 };
    let set = ["btl_openib_receive_queues=P,4K,512,128,64", "btl_openib_cq_size=256"];
    let nodes: Vec<Node> = (0..4).map(|rank| node(rank, 4, &set)).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    let mut endpoints: Vec<_> = nodes[1..].iter().map(|from| connect(from, &nodes[0])).collect();
    for endpoint in &mut endpoints {
        send(&all, &mut **endpoint, b"first", b"");
    }
    until(&all, "they arrive", || nodes[0].received() == 3);
    // Rank 0 does not poll, and all its buffers fill.
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
fn processes_with_different_lists_do_not_connect() {
    if !has_device() {
        return;
    }
    if is_managed() {
        return println!("skipped: librdmacm uses only the last queue of each list");
    }
    let (a, b) = (node(0, 2, &[&listed(LISTS[1])]), node(1, 2, &[]));
    assert!(a.connect(&b).is_empty() && b.connect(&a).is_empty());
}

/// A device may lack shared receive queues where other devices of the job have them.
#[test]
fn per_peer_buffers_work_with_shared_ones() {
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
        until(&nodes, "the departures are reported", || a.departures() == 1);
        assert_eq!(a.failures(), 0);
    }
}
