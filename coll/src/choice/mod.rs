//! Chooses the algorithm of a call: the one whose predicted time is the least.
//!
//! All ranks must choose the same one. So a choice depends only on the operation, the number of bytes, and what is equal
//! on all ranks by [`costs`](crate::costs): the nodes, the prices and the parameters, which must be equal as Open MPI's
//! must.
//!
//! A prediction takes longer than a small operation. So it is made once for all sizes from a power of two up to the next
//! one, for the power of two.

mod algorithm;
mod prediction;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use cableway_base::Parameters;
use cableway_base::parameters::{Allreduce, DeviceProtocols};
use cableway_pml::NodeCard;

pub(crate) use algorithm::{
    Algorithm, Gathered, Operation, Setting, allgather, allreduce, alltoall_by_peer_access, broadcast, reduce,
    reduce_scatter, scratch_of_reduce,
};

use crate::costs::{Line, Picoseconds, Prices};
use crate::plan::{Nodes, exchange, one_shot};
use prediction::Question;

/// The size classes. Larger data than 256 MiB belongs to the last one: only its bytes count.
const CLASSES: usize = 29;

/// What choices depend on, and those that were made.
#[derive(Debug)]
pub(crate) struct Choice {
    setup: Setup,
    host: Prices,
    devices: Prices,
    /// Copies of data to the host and back.
    through_host: Line,
    /// For calls that may not be done in one shot, and for those that may.
    chosen: [[[OnceLock<Algorithm>; CLASSES]; Operation::ALL.len()]; 2],
}

/// What makes two choices alike, beside the parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    /// The cards of all ranks.
    pub(crate) cards: Vec<NodeCard>,
    pub(crate) nodes: Nodes,
    /// The data is expected to be in device memory.
    pub(crate) on_devices: bool,
    /// Ranks share a device, so that they do not access each other's memory.
    pub(crate) one_device: bool,
}

impl Setup {
    pub(crate) fn new(cards: Vec<NodeCard>, on_devices: bool) -> Setup {
        let nodes = Nodes::of(cards.iter().map(|card| card.node));
        Setup { cards, nodes, on_devices, one_device: false }
    }

    /// Describes ranks of which some share a device, or not.
    pub(crate) fn on_one_device(self, one_device: bool) -> Setup {
        Setup { one_device, ..self }
    }
}

/// What the parameters say about choices.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The largest segment in bytes.
    pub(crate) segment: u64,
    /// Smaller reductions are made by the host.
    pub(crate) device_limit: u64,
    /// Processes do not access the device memory of others.
    copy_only: bool,
    /// The name of an algorithm of each operation, or nothing.
    names: [String; Operation::ALL.len()],
}

impl Rules {
    pub(crate) fn new(parameters: &Parameters) -> Rules {
        let name = |operation| match (operation, parameters.coll_allreduce) {
            (Operation::Allreduce, Allreduce::RecursiveDoubling) => "recursive_doubling".to_owned(),
            (Operation::Allreduce, Allreduce::Direct) => "direct".to_owned(),
            (Operation::Allreduce, Allreduce::PeerAccess) => "peer_access".to_owned(),
            (Operation::Allreduce, Allreduce::OneShot) => "one_shot".to_owned(),
            (Operation::Allreduce, Allreduce::Ring) => "ring".to_owned(),
            (Operation::Allreduce, Allreduce::Rabenseifner) => "rabenseifner".to_owned(),
            (Operation::Allreduce, Allreduce::Hierarchical) => "hierarchical".to_owned(),
            _ => parameters.coll_algorithm.clone(),
        };
        Rules {
            segment: (parameters.coll_segment as u64).max(1),
            device_limit: parameters.coll_device_limit as u64,
            copy_only: parameters.device_protocols == DeviceProtocols::Copy,
            names: Operation::ALL.map(name),
        }
    }
}

/// An operation for which an algorithm is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) operation: Operation,
    pub(crate) bytes: u64,
    /// The members have slots, and all of them wait for the operation.
    pub(crate) may_be_one_shot: bool,
}

/// An algorithm and its predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Predicted {
    pub(crate) algorithm: Algorithm,
    pub(crate) time: Picoseconds,
}

impl Choice {
    pub(crate) fn new(setup: Setup, parameters: &Parameters) -> Choice {
        let host = Prices::of_host(&setup.cards);
        let devices = host.on_devices(parameters);
        let through_host = Prices::through_host(parameters);
        Choice { setup, host, devices, through_host, chosen: Default::default() }
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the algorithm of an operation on so many bytes, which may be done in one shot or not. The first time for a
    /// class of sizes, it tells `report` what it has decided.
    pub(crate) fn choose(
        &self,
        rules: &Rules,
        Asked { operation, bytes, may_be_one_shot }: Asked,
        report: impl FnOnce(&str),
    ) -> Algorithm {
        let class = (bytes.max(1).ilog2() as usize).min(CLASSES - 1);
        // Where one shot is no choice, there is one choice for all calls.
        let in_one_shot = may_be_one_shot && self.has_one_shot(rules, operation);
        *self.chosen[usize::from(in_one_shot)][operation as usize][class].get_or_init(|| {
            let mut predicted = self.predict(rules, operation, 1 << class);
            predicted.retain(|one| in_one_shot || one.algorithm != Algorithm::OneShot);
            let chosen = self.best(rules, operation, &predicted);
            report(&self.describe(operation, class, &predicted, chosen));
            chosen
        })
    }

    /// Predicts the times of all algorithms.
    pub(crate) fn predict(&self, rules: &Rules, operation: Operation, bytes: u64) -> Vec<Predicted> {
        let (nodes, segment, bytes) = (&self.setup.nodes, rules.segment, bytes.max(1));
        // Only peer access and slots reduce little data on the devices.
        let little = operation.reduces() && bytes < rules.device_limit;
        let predicted = |algorithm| {
            let on_device = matches!(algorithm, Algorithm::PeerAccess | Algorithm::OneShot);
            let through_host = self.setup.on_devices && little && !on_device;
            let prices = if self.setup.on_devices && !through_host { &self.devices } else { &self.host };
            let time = Question { operation, bytes, nodes, segment, prices }.time(algorithm);
            let copies = if through_host { self.through_host.of(bytes) } else { 0 };
            Predicted { algorithm, time: time.saturating_add(copies) }
        };
        let usable = |algorithm: &Algorithm| match algorithm {
            Algorithm::PeerAccess => self.expects_peer_access(rules),
            Algorithm::OneShot => self.expects_peer_access(rules) && bytes <= one_shot::MOST_DATA,
            _ => true,
        };
        Algorithm::of(operation, nodes).filter(usable).map(predicted).collect()
    }

    /// Checks whether one shot is among the algorithms of an operation.
    fn has_one_shot(&self, rules: &Rules, operation: Operation) -> bool {
        let mut algorithms = Algorithm::of(operation, &self.setup.nodes);
        self.expects_peer_access(rules) && algorithms.any(|algorithm| algorithm == Algorithm::OneShot)
    }

    /// Checks whether ranks are expected to access each other's memory.
    fn expects_peer_access(&self, rules: &Rules) -> bool {
        let Setup { on_devices, one_device, .. } = self.setup;
        on_devices && !one_device && !rules.copy_only && self.setup.nodes.count() == 1
    }

    /// Checks whether the ranks exchange blocks by peer access in an alltoall. The sizes of its blocks may differ among
    /// ranks, so they do not count.
    pub(crate) fn alltoall_by_peer_access(&self, rules: &Rules) -> bool {
        let named = &*rules.names[Operation::Allgather as usize];
        let peer_access = Algorithm::PeerAccess.name();
        let expected = named.is_empty() && self.expects_peer_access(rules);
        (expected || named == peer_access) && self.setup.nodes.ranks() <= exchange::MOST_RANKS
    }

    /// Returns the one with the least time, among those that the parameters name if they name any.
    pub(crate) fn best(&self, rules: &Rules, operation: Operation, predicted: &[Predicted]) -> Algorithm {
        let name = &*rules.names[operation as usize];
        let least = |named: bool| {
            let usable = predicted.iter().filter(|one| !named || one.algorithm.is_named(name));
            usable.min_by_key(|one| one.time).map(|one| one.algorithm)
        };
        // The user may ask for what is not among the choices.
        let possible = |algorithm: &Algorithm| match algorithm {
            Algorithm::PeerAccess => {
                operation != Operation::Broadcast && self.setup.nodes.ranks() <= exchange::MOST_RANKS
            }
            _ => true,
        };
        let asked =
            [Algorithm::Direct, Algorithm::PeerAccess].into_iter().filter(|one| one.name() == name).find(possible);
        least(true).or(asked).or_else(|| least(false)).unwrap_or(Algorithm::Tree)
    }

    fn describe(&self, operation: Operation, class: usize, predicted: &[Predicted], chosen: Algorithm) -> String {
        let shown = |one: &Predicted| format!("{} {:.1} us", one.algorithm.name(), one.time as f64 * 1e-6);
        let of = |one: &&Predicted| one.algorithm == chosen;
        let taken = predicted.iter().find(of).map_or_else(|| chosen.name().to_owned(), shown);
        let others: Vec<String> = predicted.iter().filter(|one| !of(one)).map(shown).collect();
        let last = (2_u64 << class) - 1;
        let sizes = if class + 1 == CLASSES { "more".to_owned() } else { last.to_string() };
        let (ranks, nodes) = (self.setup.nodes.ranks(), self.setup.nodes.count());
        let nodes = if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
        format!(
            "{} of {} to {sizes} bytes, {ranks} ranks on {nodes}: {taken}; not chosen: {}",
            operation.name(),
            1_u64 << class,
            others.join(", ")
        )
    }
}
