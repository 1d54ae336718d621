//! What connections cost in memory, worked out from the parameters, for whoever plans a job of thousands of processes.
//! `examples/footprint.rs` measures the same on a device.

use std::sync::Arc;

use cableway_base::{Parameters, Rank};
use cableway_btl::{Capabilities, Error};

use crate::card::Address;
use crate::connection::HELLO;
use crate::kept::Message;
use crate::link::{Link, Owner};
use crate::settings::Settings;

/// Bytes of one process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Receive buffers, which all peers share: from the first connection on.
    pub shared: usize,
    /// A connection's queue of work, and what the driver keeps of it.
    pub queue_pair: usize,
    /// This transport's own tables for a connection, and the messages kept there that are small.
    pub tables: usize,
}

/// Of an entry in the send queue of soft-RoCE, `struct rxe_send_wqe` of `rdma/rdma_user_rxe.h`. Network cards' are
/// smaller (mlx5: 36 bytes and the data, in steps of 64).
const ENTRY: usize = 208;
/// What drivers keep for a queue pair beside its queue: soft-RoCE takes so much.
const QUEUE_PAIR: usize = 2560;

impl Footprint {
    /// # Errors
    /// Parameters that contradict each other.
    pub fn new(parameters: &Parameters) -> Result<Self, Error> {
        let settings = Settings::new(parameters)?;
        // Both are rounded to powers of two, the number with one to spare.
        let entry = (ENTRY + (settings.inline as usize).max(16)).next_power_of_two();
        let entries = (settings.depth + 1).next_power_of_two();
        let work = settings.depth.next_power_of_two() * size_of::<Owner>();
        let kept = settings.receives.window.next_power_of_two() * size_of::<Message>();
        // Tables keep every eighth place free, and double.
        let known = 2 * (size_of::<Rank>() + HELLO + size_of::<Address>());
        let directory = size_of::<Arc<Link>>() * 5;
        let link = size_of::<Link>() + size_of::<Capabilities>() + size_of::<u64>();
        Ok(Footprint {
            shared: settings.receives.size * settings.receives.count,
            queue_pair: entries * entry + QUEUE_PAIR,
            tables: link + directory + known + work + kept,
        })
    }

    /// A peer that is connected and has nothing to say.
    pub fn per_peer(&self) -> usize {
        self.queue_pair + self.tables
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
    }

    #[test]
    fn a_deeper_queue_costs_more() {
        let mut parameters = Parameters::default();
        parameters.assign("btl_openib_send_depth=127", cableway_base::Source::Program).unwrap();
        let [deep, usual] = [&parameters, &Parameters::default()].map(|set| Footprint::new(set).unwrap());
        assert!(deep.queue_pair > 2 * usual.queue_pair && deep.shared == usual.shared);
    }
}
