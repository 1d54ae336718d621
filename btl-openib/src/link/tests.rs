//! Tests on a verbs device of this machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_base::Parameters;
use cableway_btl::{Endpoint, FragmentKind, Job};
use cableway_common_cuda::Devices;
use test_nodes::{Node, pattern, send, until};

use super::*;
use crate::Openib;

const PEERS: u32 = 2;

fn node(rank: Rank, list: &str) -> (Node, Arc<Openib>) {
    let mut parameters = Parameters::default();
    let list = format!("btl_openib_receive_queues={list}");
    for assignment in ["peer_timeout=4s", &list] {
        parameters.assign_internal(assignment).unwrap();
    }
    let job = Job::new("test-job".to_owned(), [42; 32], rank, PEERS, PEERS);
    let transport = Openib::open(&job, &parameters, &Devices::none()).unwrap().remove(0);
    (Node::of(rank, Arc::clone(&transport) as _), transport)
}

fn connect(from: &Node, to: &Node) -> Box<dyn Endpoint> {
    from.btl.connect(to.rank, &to.btl.card()).unwrap().remove(0)
}

/// A device refuses further work, perhaps even the last work that breaks a connection. All work in flight completes,
/// and the refused message is not lost, because its fragment was accepted.
#[test]
fn refused_work_is_among_the_remains() {
    if !crate::verbs::has_device() {
        return;
    }
    for list in ["S,8K,256,64,128", "P,256,128,32,64:S,8K,128,32,64"] {
        let ((a, transport), (b, _)) = (node(0, list), node(1, list));
        let (mut to_b, _to_a) = (connect(&a, &b), connect(&b, &a));
        let messages: Vec<Vec<u8>> = (0..20).map(|n| pattern([100, 3000][n % 2], n as u64)).collect();
        for message in &messages[..10] {
            send(&[&a, &b], &mut *to_b, message, b"");
        }
        until(&[&a, &b], "they arrive", || b.received() == 10);
        let mut fragments: Vec<_> =
            messages[10..].iter().map(|each| to_b.alloc(each.len(), FragmentKind::Device).unwrap().unwrap()).collect();
        for (fragment, message) in fragments.iter_mut().zip(&messages[10..]) {
            fragment.write(0, message);
        }
        // Some messages are in flight without a signal for their completion.
        let refused = fragments.split_off(5);
        for (fragment, message) in fragments.into_iter().zip(&messages[10..]) {
            to_b.send(fragment, message.len()).unwrap();
        }
        if let State::Connected(connection) = &transport.link_to(1).tx.lock().state {
            connection.qps.iter().for_each(|qp| qp.pair.refuses.store(true, Ordering::Relaxed));
        }
        for (fragment, message) in refused.into_iter().zip(&messages[15..]) {
            to_b.send(fragment, message.len()).unwrap();
        }
        assert!(to_b.send_inline(b"late", b"").is_err(), "it broke");
        until(&[&a, &b], "both know", || a.failures() == 1 && b.failures() == 1);
        let (here, there) = (a.btl.remains(1).unwrap(), b.btl.remains(0).unwrap());
        assert_eq!(there.received as usize, b.received());
        assert!((10..=15).contains(&there.received), "{}", there.received);
        let left = &here.uncertain;
        assert_eq!(left.len(), messages.len() - here.delivered as usize);
        assert!(left.iter().zip(&messages[here.delivered as usize..]).all(|(left, sent)| **left == **sent));
        assert!(a.btl.finalize(), "no work may be in flight");
    }
}
