//! What collective operations do, computed by each rank alone.

use cableway::ReduceOperation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Broadcast,
    Gather,
    Gatherv,
    Scatter,
    Scatterv,
    Allgather,
    Allgatherv,
    Alltoall,
    Alltoallv,
    Allreduce,
    Reduce,
    ReduceScatterBlock,
    ReduceScatter,
    Scan,
    ExclusiveScan,
}

pub(super) const KINDS: [Kind; 15] = [
    Kind::Broadcast,
    Kind::Gather,
    Kind::Gatherv,
    Kind::Scatter,
    Kind::Scatterv,
    Kind::Allgather,
    Kind::Allgatherv,
    Kind::Alltoall,
    Kind::Alltoallv,
    Kind::Allreduce,
    Kind::Reduce,
    Kind::ReduceScatterBlock,
    Kind::ReduceScatter,
    Kind::Scan,
    Kind::ExclusiveScan,
];

/// A step of a sequence, equal on all ranks.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) operation: ReduceOperation,
    pub(super) root: usize,
    /// The number of elements, or of the elements of each part.
    pub(super) len: usize,
    /// The length of each rank's part where lengths differ.
    pub(super) counts: Vec<usize>,
    pub(super) in_place: bool,
    pub(super) nonblocking: bool,
    pub(super) number: u64,
}

/// What is in memory that an operation must not write to.
pub(super) const GAP: u64 = 0x5555_aaaa;

/// A rank's memory in a step.
pub(super) struct Plan {
    /// What it sends; empty in place.
    pub(super) send: Vec<u64>,
    /// What is in the other memory before.
    pub(super) before: Vec<u64>,
    /// What must be there afterwards; `None` for undefined elements.
    pub(super) after: Vec<Option<u64>>,
    pub(super) send_counts: Vec<usize>,
    pub(super) counts: Vec<usize>,
    /// Parts lie apart.
    pub(super) displacements: Vec<usize>,
}

impl Step {
    /// Returns the data of rank `from`, or what it sends to rank `to`.
    fn data(&self, from: usize, to: usize, len: usize) -> Vec<u64> {
        let seed = self.number << 32 | (from as u64) << 24 | (to as u64) << 16;
        (0..len as u64).map(|at| (seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).collect()
    }

    fn fold(&self, a: u64, b: u64) -> u64 {
        match self.operation {
            ReduceOperation::Sum => a.wrapping_add(b),
            ReduceOperation::Product => a.wrapping_mul(b),
            ReduceOperation::Min => a.min(b),
            ReduceOperation::Max => a.max(b),
            _ => a ^ b,
        }
    }

    /// Returns the fold of the data of the first `ranks` ranks.
    fn folded(&self, ranks: usize, len: usize) -> Vec<u64> {
        let all = (0..ranks).map(|rank| self.data(rank, 0, len));
        all.reduce(|a, b| a.iter().zip(b).map(|(&a, b)| self.fold(a, b)).collect()).unwrap_or_default()
    }

    /// Returns the length of what rank `from` sends to rank `to` in an alltoallv. It is that of the way back.
    fn between(&self, from: usize, to: usize) -> usize {
        self.counts[(from + to) % self.counts.len()]
    }

    /// Returns the memory of a rank.
    pub(super) fn plan(&self, me: usize) -> Plan {
        let (size, len) = (self.counts.len(), self.len);
        let ranks = || 0..size;
        let some = |values: Vec<u64>| values.into_iter().map(Some).collect::<Vec<_>>();
        let at_root = me == self.root;
        let all = |counts: &[usize]| ranks().map(|rank| self.data(rank, 0, counts[rank])).collect::<Vec<_>>();
        let mut plan = Plan {
            send: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            send_counts: Vec::new(),
            counts: vec![len; size],
            displacements: Vec::new(),
        };
        match self.kind {
            Kind::Broadcast => {
                plan.before = if at_root { self.data(me, 0, len) } else { vec![GAP; len] };
                plan.after = some(self.data(self.root, 0, len));
            }
            Kind::Gather | Kind::Gatherv | Kind::Allgather | Kind::Allgatherv => {
                if matches!(self.kind, Kind::Gatherv | Kind::Allgatherv) {
                    plan.counts.clone_from(&self.counts);
                }
                let parts = all(&plan.counts);
                let rooted = matches!(self.kind, Kind::Gather | Kind::Gatherv);
                plan.send.clone_from(&parts[me]);
                if !rooted || at_root {
                    self.lay_out(&mut plan, &parts, |rank| self.in_place && rank == me);
                } else if self.in_place {
                    (plan.before, plan.after) = (parts[me].clone(), some(parts[me].clone()));
                }
            }
            Kind::Scatter | Kind::Scatterv => {
                if self.kind == Kind::Scatterv {
                    plan.counts.clone_from(&self.counts);
                }
                let parts: Vec<_> = ranks().map(|rank| self.data(self.root, rank, plan.counts[rank])).collect();
                if at_root {
                    self.lay_out(&mut plan, &parts, |_| true);
                }
                if at_root && self.in_place {
                    plan.after = some(plan.before.clone());
                } else {
                    plan.send = std::mem::replace(&mut plan.before, vec![GAP; parts[me].len()]);
                    plan.after = some(parts[me].clone());
                }
            }
            Kind::Alltoall | Kind::Alltoallv => {
                let between = |a, b| if self.kind == Kind::Alltoall { len } else { self.between(a, b) };
                let received: Vec<_> = ranks().map(|from| self.data(from, me, between(from, me))).collect();
                let sent: Vec<_> = ranks().map(|to| self.data(me, to, between(me, to))).collect();
                plan.counts = received.iter().map(Vec::len).collect();
                plan.send_counts.clone_from(&plan.counts);
                plan.send = sent.concat();
                self.lay_out(&mut plan, &received, |_| false);
                if self.in_place {
                    let after = std::mem::take(&mut plan.after);
                    self.lay_out(&mut plan, &sent, |_| true);
                    plan.after = after;
                }
            }
            _ => self.plan_of_reduction(me, &mut plan),
        }
        if self.in_place {
            plan.send.clear();
        }
        plan
    }

    fn plan_of_reduction(&self, me: usize, plan: &mut Plan) {
        let (size, len) = (self.counts.len(), self.len);
        let mut total = len;
        match self.kind {
            Kind::ReduceScatterBlock => total = len * size,
            Kind::ReduceScatter => {
                plan.counts.clone_from(&self.counts);
                total = self.counts.iter().sum();
            }
            _ => {}
        }
        let mine = self.data(me, 0, total);
        let result = match self.kind {
            Kind::Scan => Some(self.folded(me + 1, len)),
            Kind::ExclusiveScan if me == 0 => None,
            Kind::ExclusiveScan => Some(self.folded(me, len)),
            Kind::Reduce if me != self.root => None,
            Kind::ReduceScatterBlock | Kind::ReduceScatter => {
                let from: usize = plan.counts[..me].iter().sum();
                Some(self.folded(size, total)[from..from + plan.counts[me]].to_vec())
            }
            _ => Some(self.folded(size, len)),
        };
        let room = result.as_ref().map_or(len, Vec::len);
        plan.before = if self.in_place { mine.clone() } else { vec![GAP; room] };
        plan.after = match result {
            None => plan.before.iter().copied().map(Some).collect(),
            Some(result) => result.into_iter().map(Some).collect(),
        };
        plan.after.resize(plan.before.len(), None);
        plan.send = mine;
    }

    /// Lays parts out as they are received, those apart that have displacements. `there` says which ones are there
    /// before.
    fn lay_out(&self, plan: &mut Plan, parts: &[Vec<u64>], there: impl Fn(usize) -> bool) {
        let apart = matches!(self.kind, Kind::Gatherv | Kind::Scatterv | Kind::Allgatherv | Kind::Alltoallv);
        (plan.before, plan.after, plan.displacements) = (Vec::new(), Vec::new(), vec![0; parts.len()]);
        // The last part comes first.
        let order: Vec<usize> = if apart { (0..parts.len()).rev().collect() } else { (0..parts.len()).collect() };
        for rank in order {
            plan.displacements[rank] = plan.before.len();
            let part = &parts[rank];
            plan.before.extend(part.iter().map(|&value| if there(rank) { value } else { GAP }));
            plan.after.extend(part.iter().copied().map(Some));
            if apart {
                plan.before.push(GAP);
                plan.after.push(Some(GAP));
            }
        }
    }
}
