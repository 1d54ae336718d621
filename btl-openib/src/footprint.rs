//! What connections cost in memory, worked out from the parameters, for whoever plans a job of thousands of processes.
//! `tests/footprint.rs` holds it against what is measured on a device.

use std::sync::Arc;

use cableway_base::{Parameters, Rank};
use cableway_btl::{Capabilities, Error};

use crate::card::Address;
use crate::connection::Hello;
use crate::inbound::Inbound;
use crate::kept::Message;
use crate::link::Link;
use crate::order::Arrivals;
use crate::port::READS;
use crate::receives::Receives;
use crate::settings::Settings;
use crate::work::{LEAST, Lane, Owner, Works};

/// Bytes of one process's memory, the kernel's for it among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Receive buffers which all peers share: from the first connection on, of each port that there is one on.
    pub shared: usize,
    /// A connection's queues of work.
    pub queues: usize,
    /// What driver and kernel keep of a connection beside its queues.
    pub driver: usize,
    /// Receive buffers that each peer has of its own.
    pub buffers: usize,
    /// This transport's own tables for a connection.
    pub tables: usize,
    /// What it has of a peer for each further network that both are on, which stands by.
    pub standby: usize,
}

const PAGE: usize = 4096;
/// Of soft-RoCE's queues, before their entries (`struct rxe_queue_buf` of `rdma/rdma_user_rxe.h`).
const QUEUE_HEADER: usize = 384;
/// Of an entry in the send queue of soft-RoCE, `struct rxe_send_wqe` of `rdma/rdma_user_rxe.h`. Network cards' are
/// smaller (mlx5: 36 bytes and the data, in steps of 64).
const ENTRY: usize = 208;
/// The same, in a receive queue of one piece a buffer: `struct rxe_recv_wqe`.
const RECEIVE_ENTRY: usize = 64;
/// Of a read that soft-RoCE may be serving, `struct resp_res` of its `rxe_verbs.h`.
const SERVED_READ: usize = 64;
/// Other objects that the kernel has for each queue pair of soft-RoCE: the queue pair itself, a socket, the mapping of the
/// queue, and for a peer of the same node the descriptor by which it is watched. As counted, on Linux 6.1.
const OBJECTS: usize = 5200;
/// What libibverbs has for a queue pair, as counted.
const LIBRARY: usize = 600;

impl Footprint {
    /// # Errors
    /// Parameters that contradict each other.
    pub fn new(parameters: &Parameters) -> Result<Self, Error> {
        let settings = Settings::new(parameters)?;
        // Both are rounded to powers of two, the number with one to spare.
        let entry = (ENTRY + (settings.inline as usize).max(16)).next_power_of_two();
        let entries = (settings.depth + 1).next_power_of_two();
        let queues = settings.queues.len();
        let used = LEAST * (queues * size_of::<Owner>() + size_of::<Message>());
        // Tables keep every eighth place free, and double.
        let known = 2 * (size_of::<Rank>() + size_of::<Hello>() + size_of::<Address>());
        let directory =
            size_of::<Arc<Link>>() * 3 + queues * (size_of::<Arc<Inbound>>() * 2 + size_of::<Inbound>() + 16);
        let link = size_of::<Link>() + size_of::<Capabilities>() + size_of::<u64>();
        let standby = link + 3 * size_of::<Arc<Link>>() + 2 * (size_of::<Rank>() + size_of::<Arc<Link>>());
        // The first has its place in the link, and neither numbers nor an order.
        let several = (queues - 1) * (size_of::<Works>() + size_of::<Lane>())
            + if queues > 1 { size_of::<Arrivals>() + settings.window().next_power_of_two() } else { 0 };
        let own = settings.queues.per_peer();
        let rings = own
            .clone()
            .map(|queue| (QUEUE_HEADER + (queue.count + 1).next_power_of_two() * RECEIVE_ENTRY).next_multiple_of(PAGE))
            .sum::<usize>();
        let receives = own.clone().count() * size_of::<Receives>();
        Ok(Footprint {
            shared: settings.queues.shared().map(|queue| queue.size * queue.count).sum(),
            queues: queues * (QUEUE_HEADER + entries * entry).next_multiple_of(PAGE) + rings,
            driver: queues * (OBJECTS + READS as usize * SERVED_READ + LIBRARY),
            buffers: own.map(|queue| (queue.size * queue.count).next_multiple_of(PAGE)).sum(),
            tables: link + directory + known + used + several + receives,
            standby,
        })
    }

    /// A peer that is connected and has nothing to say.
    pub fn per_peer(&self) -> usize {
        self.queues + self.driver + self.buffers + self.tables
    }

    /// So many of them.
    pub fn of(&self, peers: usize) -> usize {
        self.shared + peers * self.per_peer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_peer_costs_less_than_16_kib() {
        let footprint = Footprint::new(&Parameters::default()).unwrap();
        assert!(footprint.per_peer() < 16 << 10, "{footprint:?}");
        assert_eq!(footprint.of(2) - footprint.of(1), footprint.per_peer());
        assert!(footprint.standby < footprint.tables);
    }

    fn of(assignment: &str) -> Footprint {
        let mut parameters = Parameters::default();
        parameters.assign_internal(assignment).unwrap();
        Footprint::new(&parameters).unwrap()
    }

    #[test]
    fn buffers_of_their_own_cost_peers_what_they_hold() {
        let [shared, own] = ["S", "P"].map(|kind| of(&format!("btl_openib_receive_queues={kind},4K,64,16,32")));
        assert_eq!((shared.shared, shared.buffers, own.shared, own.buffers), (4096 * 64, 0, 0, 4096 * 64));
        assert!(own.queues > shared.queues && own.per_peer() > shared.per_peer() + own.buffers);
        let three = of("btl_openib_receive_queues=P,512,64:S,4K,256:S,64K,256");
        assert_eq!((three.shared, three.buffers), (256 * (4096 + 65536), 64 * 512));
        assert!(three.queues > 3 * shared.queues && three.tables > shared.tables);
    }

    #[test]
    fn a_deeper_queue_costs_more() {
        let mut parameters = Parameters::default();
        parameters.assign_internal("btl_openib_send_depth=127").unwrap();
        let [deep, usual] = [&parameters, &Parameters::default()].map(|set| Footprint::new(set).unwrap());
        assert!(deep.queues > 2 * usual.queues && deep.shared == usual.shared);
    }
}
