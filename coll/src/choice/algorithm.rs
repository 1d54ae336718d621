//! The operations that several algorithms perform, and these algorithms.

use crate::plan::direct::direct;
use crate::plan::exchange::{self, Exchange, Moves, Reduction};
use crate::plan::hierarchy::{self, Between};
use crate::plan::operands::Operands;
use crate::plan::shares::{Results, Shares};
use crate::plan::{
    Block, Me, Nodes, Place, Plan, StepId, alltoall, broadcast, doubling, halving, one_shot, ring, tree,
};

/// An operation that several algorithms perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Allreduce,
    Reduce,
    Broadcast,
    Allgather,
    ReduceScatter,
}

impl Operation {
    pub(crate) const ALL: [Operation; 5] =
        [Operation::Allreduce, Operation::Reduce, Operation::Broadcast, Operation::Allgather, Operation::ReduceScatter];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Allreduce => "allreduce",
            Operation::Reduce => "reduce",
            Operation::Broadcast => "broadcast",
            Operation::Allgather => "allgather",
            Operation::ReduceScatter => "reduce_scatter",
        }
    }

    pub(crate) fn reduces(self) -> bool {
        matches!(self, Operation::Allreduce | Operation::Reduce | Operation::ReduceScatter)
    }
}

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Doubling,
    Halving,
    Ring,
    /// Each rank reduces or passes on a share, or exchanges its block with all others.
    Direct,
    /// Each rank reduces a share in the memory of all others.
    PeerAccess,
    /// Each rank takes what it needs from slots of shared host memory.
    OneShot,
    /// A binomial tree.
    Tree,
    /// Within each node, then between nodes by another algorithm, then within each node.
    Hierarchical(Between),
}

/// The most ranks that exchange directly, unless the user asks for it. Each rank has that many messages under way, and
/// looks after all of them. An allgather may exceed it, because nothing else comes near for little data.
const DIRECT_RANKS: u32 = 64;

impl Algorithm {
    /// Returns the algorithms of an operation. Those that come first are taken if others have the same cost.
    pub(crate) fn of(operation: Operation, nodes: &Nodes) -> impl Iterator<Item = Algorithm> + Clone {
        use Algorithm::{Direct, Doubling, Halving, Hierarchical, OneShot, PeerAccess, Ring, Tree};
        let all: &[Algorithm] = match operation {
            Operation::Allreduce => &[
                Doubling,
                OneShot,
                PeerAccess,
                Direct,
                Ring,
                Halving,
                Hierarchical(Between::Doubling),
                Hierarchical(Between::Direct),
                Hierarchical(Between::Ring),
                Hierarchical(Between::Halving),
            ],
            Operation::Reduce => {
                &[Tree, PeerAccess, Direct, Hierarchical(Between::Tree), Hierarchical(Between::Direct)]
            }
            Operation::Broadcast => &[Tree, Direct, Hierarchical(Between::Tree), Hierarchical(Between::Direct)],
            Operation::Allgather => &[OneShot, PeerAccess, Direct, Ring, Hierarchical(Between::Direct)],
            Operation::ReduceScatter => &[OneShot, PeerAccess, Direct],
        };
        let (ranks, count) = (nodes.ranks(), nodes.count());
        all.iter().copied().filter(move |algorithm| match algorithm {
            PeerAccess => count == 1 && ranks <= exchange::MOST_RANKS,
            OneShot => count == 1 && ranks <= one_shot::MOST_RANKS,
            Direct => {
                let has_others = matches!(operation, Operation::Allreduce | Operation::Reduce | Operation::Broadcast);
                ranks <= DIRECT_RANKS || !has_others
            }
            Hierarchical(Between::Direct) => count > 1 && count < ranks && count <= DIRECT_RANKS,
            // On two nodes all algorithms between them exchange halves or everything.
            Hierarchical(Between::Ring | Between::Halving) => count > 2 && count < ranks,
            Hierarchical(_) => count > 1 && count < ranks,
            _ => true,
        })
    }

    /// Returns the name for users.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Doubling => "recursive_doubling",
            Algorithm::Halving => "rabenseifner",
            Algorithm::Ring => "ring",
            Algorithm::Direct => "direct",
            Algorithm::PeerAccess => "peer_access",
            Algorithm::OneShot => "one_shot",
            Algorithm::Tree => "tree",
            Algorithm::Hierarchical(Between::Doubling) => "hierarchical, recursive_doubling",
            Algorithm::Hierarchical(Between::Halving) => "hierarchical, rabenseifner",
            Algorithm::Hierarchical(Between::Ring) => "hierarchical, ring",
            Algorithm::Hierarchical(Between::Direct) => "hierarchical, direct",
            Algorithm::Hierarchical(Between::Tree) => "hierarchical, tree",
        }
    }

    /// Checks whether the algorithm has this name, or is the hierarchical one if that is the name.
    pub(crate) fn is_named(self, name: &str) -> bool {
        self.name() == name || (name == "hierarchical" && matches!(self, Algorithm::Hierarchical(_)))
    }

    /// Returns whether the time grows with the logarithm of the number of ranks, for data of one length. Otherwise it
    /// grows with that number, for shares of one length.
    pub(crate) fn is_logarithmic(self) -> bool {
        matches!(self, Algorithm::Doubling | Algorithm::Halving | Algorithm::Tree)
    }
}

/// A rank among the others, and the largest segment of data, in elements or bytes.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'n> {
    pub(crate) me: Me,
    pub(crate) nodes: &'n Nodes,
    pub(crate) segment: u64,
}

/// Adds an allreduce of elements. Returns the steps after which the output is complete. There are at least two ranks.
pub(crate) fn allreduce(
    plan: &mut Plan,
    algorithm: Algorithm,
    Setting { me, nodes, segment }: Setting<'_>,
    (operands, count): (&Operands, u64),
    ready: &[StepId],
) -> Vec<StepId> {
    match algorithm {
        // Operations in one shot have steps of their own (`build`).
        Algorithm::Doubling | Algorithm::Tree | Algorithm::OneShot => {
            doubling::doubling(plan, me, (operands, count), ready)
        }
        Algorithm::Halving => halving::halving(plan, me, (operands, count), ready),
        Algorithm::Ring => ring::allreduce(plan, me, (operands, count), segment, ready),
        Algorithm::Direct => {
            let shares = Shares::even(count, me.size);
            direct(plan, me, operands, &shares, (Results::Everywhere, segment), ready)
        }
        Algorithm::PeerAccess => {
            by_peer_access(plan, operands, (Shares::even(count, me.size), Results::Everywhere), ready)
        }
        Algorithm::Hierarchical(between) => {
            hierarchy::allreduce(plan, (me, nodes), (operands, count), (between, segment), ready)
        }
    }
}

/// Adds a reduce to the root, as [`allreduce`]. At other ranks the output is
/// scratch memory for [`scratch_of_reduce`] elements.
pub(crate) fn reduce(
    plan: &mut Plan,
    algorithm: Algorithm,
    Setting { me, nodes, segment }: Setting<'_>,
    (operands, count, root): (&Operands, u64, u32),
    ready: &[StepId],
) -> Vec<StepId> {
    match algorithm {
        Algorithm::Direct => {
            let shares = Shares::even(count, me.size);
            direct(plan, me, operands, &shares, (Results::AtRoot(root), segment), ready)
        }
        Algorithm::PeerAccess => {
            by_peer_access(plan, operands, (shares_of_reduce(count, root, me.size), Results::AtRoot(root)), ready)
        }
        Algorithm::Hierarchical(between) => {
            hierarchy::reduce(plan, (me, nodes, root), (operands, count), (between, segment), ready)
        }
        _ => tree::reduce(plan, me, root, (operands, count), ready),
    }
}

/// Returns the shares of a reduce by peer access. Of two ranks the root reduces everything: it has to get as many bytes
/// either way, and then no kernel waits until its stores have reached another device.
fn shares_of_reduce(count: u64, root: u32, ranks: u32) -> Shares {
    if ranks == 2 { Shares::all_of(root, count, 2) } else { Shares::even(count, ranks) }
}

/// Returns the elements for which a rank other than the root needs memory in a reduce: its results.
pub(crate) fn scratch_of_reduce(algorithm: Algorithm, count: u64, root: u32, me: Me) -> u64 {
    if algorithm != Algorithm::PeerAccess {
        return count;
    }
    let share = shares_of_reduce(count, root, me.size).of_rank(me.rank);
    share.end - share.start
}

fn by_peer_access(
    plan: &mut Plan,
    operands: &Operands,
    (shares, results): (Shares, Results),
    ready: &[StepId],
) -> Vec<StepId> {
    let reduction = Reduction { operands: *operands, shares, results };
    vec![plan.exchange(Exchange::Reduce(reduction), ready)]
}

/// Adds a reduce-scatter by shares. Returns the steps after which the output is complete.
pub(crate) fn reduce_scatter(
    plan: &mut Plan,
    algorithm: Algorithm,
    Setting { me, segment, .. }: Setting<'_>,
    (operands, shares): (&Operands, Shares),
    ready: &[StepId],
) -> Vec<StepId> {
    if algorithm == Algorithm::PeerAccess {
        return by_peer_access(plan, operands, (shares, Results::Scattered), ready);
    }
    direct(plan, me, operands, &shares, (Results::Scattered, segment), ready)
}

/// Adds a broadcast of contiguous bytes. Returns the last steps.
pub(crate) fn broadcast(
    plan: &mut Plan,
    algorithm: Algorithm,
    Setting { me, nodes, segment }: Setting<'_>,
    (data, bytes, root): (Place, u64, u32),
    ready: &[StepId],
) -> Vec<StepId> {
    match algorithm {
        Algorithm::Direct => broadcast::scattered(plan, me, root, (data, bytes), segment, ready),
        Algorithm::Hierarchical(between) => {
            hierarchy::broadcast(plan, (me, nodes, root), (data, bytes), (between, segment), ready)
        }
        _ => tree::broadcast(plan, me, root, Block::bytes(data, bytes), ready),
    }
}

/// The blocks of an allgather.
#[derive(Clone, Copy)]
pub(crate) struct Gathered<'b> {
    /// What this rank sends, which holds the data from the beginning.
    pub(crate) own: Block,
    /// It is this rank's part of `blocks`. Otherwise it is other memory, at any address: that of a block may be relative.
    pub(crate) in_place: bool,
    /// The block of each rank.
    pub(crate) blocks: &'b [Block],
}

/// Adds an allgather. This rank's block is filled after `ready`. Returns the last steps. By peer access, `ready` is empty,
/// and this rank's block is filled here, too.
pub(crate) fn allgather(
    plan: &mut Plan,
    algorithm: Algorithm,
    Setting { me, nodes, .. }: Setting<'_>,
    Gathered { own, in_place, blocks }: Gathered<'_>,
    ready: &[StepId],
) -> Vec<StepId> {
    match algorithm {
        Algorithm::Ring => ring::allgather(plan, me, blocks, ready),
        Algorithm::PeerAccess => {
            let copied = (!in_place).then_some((own, blocks[me.rank as usize]));
            alltoall_by_peer_access(plan, (vec![own; blocks.len()], blocks.to_vec()), copied, ready)
        }
        Algorithm::Hierarchical(_) => hierarchy::allgather(plan, (me, nodes), own, blocks),
        _ => alltoall::exchange(plan, me, &vec![own; blocks.len()], blocks, &[]),
    }
}

/// Adds an exchange of blocks by peer access: this rank sends `sends[r]` to rank `r`, and receives `receives[r]` from it. It
/// copies `own`. Returns the last steps.
pub(crate) fn alltoall_by_peer_access(
    plan: &mut Plan,
    (sends, receives): (Vec<Block>, Vec<Block>),
    own: Option<(Block, Block)>,
    ready: &[StepId],
) -> Vec<StepId> {
    vec![plan.exchange(Exchange::Move(Moves { sends, receives, own }), ready)]
}
