//! Computes the memory cost of connections from the parameters, for planning jobs of thousands of processes.
//! `tests/footprint.rs` compares it with measurements on a device.

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
use crate::work::{ConnectedQp, LEAST, Owner, WorkList};

/// The memory of one process in bytes, including the kernel's memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Receive buffers that all peers share, of each port, from its first connection on.
    pub shared: usize,
    /// The work queues of a connection.
    pub queues: usize,
    /// The memory of driver and kernel for a connection, without its queues.
    pub driver: usize,
    /// The receive buffers of one peer, if they are not shared.
    pub buffers: usize,
    /// This transport's tables for a connection.
    pub tables: usize,
    /// The memory for a peer on each further network that both processes use as a standby.
    pub standby: usize,
}

const PAGE: usize = 4096;
/// The header of soft-RoCE's queues (`struct rxe_queue_buf` in `rdma/rdma_user_rxe.h`).
const QUEUE_HEADER: usize = 384;
/// An entry in soft-RoCE's send queue (`struct rxe_send_wqe` in `rdma/rdma_user_rxe.h`). Hardware uses less (mlx5: 36
/// bytes and the data, in steps of 64).
const ENTRY: usize = 208;
/// An entry in soft-RoCE's receive queue, with one buffer (`struct rxe_recv_wqe`).
const RECEIVE_ENTRY: usize = 64;
/// A read that soft-RoCE may be serving (`struct resp_res` in its `rxe_verbs.h`).
const SERVED_READ: usize = 64;
/// Other kernel objects for each queue pair of soft-RoCE, as measured on Linux 6.1: the queue pair, a socket, the
/// mapping of the queue, and for a peer on the same node the descriptor that watches it.
const OBJECTS: usize = 5200;
/// The memory of libibverbs for a queue pair, as measured.
const LIBRARY: usize = 600;

impl Footprint {
    /// # Errors
    /// The parameters contradict each other.
    pub fn new(parameters: &Parameters) -> Result<Self, Error> {
        let settings = Settings::new(parameters)?;
        // Soft-RoCE rounds both to powers of two, and keeps one entry of the number free.
        let entry = (ENTRY + (settings.inline as usize).max(16)).next_power_of_two();
        let entries = (settings.depth + 1).next_power_of_two();
        let queues = settings.queues.len();
        let used = LEAST * (queues * size_of::<Owner>() + size_of::<Message>());
        // Hash tables keep one place in eight free, and grow by doubling.
        let known = 2 * (size_of::<Rank>() + size_of::<Hello>() + size_of::<Address>());
        let directory =
            size_of::<Arc<Link>>() * 3 + queues * (size_of::<Arc<Inbound>>() * 2 + size_of::<Inbound>() + 16);
        let link = size_of::<Link>() + size_of::<Capabilities>() + size_of::<u64>();
        let standby = link + 3 * size_of::<Arc<Link>>() + 2 * (size_of::<Rank>() + size_of::<Arc<Link>>());
        // The first queue pair is stored in the link, and a single one needs no order.
        let several = (queues - 1) * (size_of::<WorkList>() + size_of::<ConnectedQp>())
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

    /// Returns the memory for a connected, idle peer.
    pub fn per_peer(&self) -> usize {
        self.queues + self.driver + self.buffers + self.tables
    }

    /// Returns the memory for `peers` of them.
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
