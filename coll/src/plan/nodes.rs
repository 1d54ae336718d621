//! Which ranks of a communicator share a node.

/// The nodes of a communicator, in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    of: Vec<u32>,
    members: Vec<Vec<u32>>,
}

impl Nodes {
    /// Describes ranks by the identities of their nodes. A rank without one has a node of its own.
    pub(crate) fn of(identities: impl IntoIterator<Item = Option<[u8; 16]>>) -> Nodes {
        let mut known: std::collections::HashMap<[u8; 16], u32> = std::collections::HashMap::new();
        let mut nodes = Nodes { of: Vec::new(), members: Vec::new() };
        for (rank, identity) in (0..).zip(identities) {
            let new = nodes.members.len() as u32;
            let node = identity.map_or(new, |identity| *known.entry(identity).or_insert(new));
            if node == new {
                nodes.members.push(Vec::new());
            }
            nodes.members[node as usize].push(rank);
            nodes.of.push(node);
        }
        nodes
    }

    /// Describes so many ranks that fill so many nodes evenly, one after the other.
    pub(crate) fn even(ranks: u32, nodes: u32) -> Nodes {
        let node = |rank: u32| u64::from(rank) * u64::from(nodes.max(1)) / u64::from(ranks.max(1));
        Nodes::of((0..ranks).map(|rank| Some(u128::from(node(rank)).to_be_bytes())))
    }

    /// Returns the number of ranks.
    pub(crate) fn ranks(&self) -> u32 {
        self.of.len() as u32
    }

    /// Returns the number of nodes.
    pub(crate) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// Returns a rank's node.
    pub(crate) fn of_rank(&self, rank: u32) -> u32 {
        self.of[rank as usize]
    }

    /// Returns the ranks of a node, in ascending order.
    pub(crate) fn members(&self, node: u32) -> &[u32] {
        &self.members[node as usize]
    }

    /// Returns the place of a rank among those of its node.
    pub(crate) fn local(&self, rank: u32) -> u32 {
        self.members(self.of_rank(rank)).partition_point(|&member| member < rank) as u32
    }

    /// Returns the number of ranks that every node has at least.
    pub(crate) fn smallest(&self) -> u32 {
        self.members.iter().map(Vec::len).min().unwrap_or(0) as u32
    }

    /// Returns the ranks at this place of each node. Every node has such a rank.
    pub(crate) fn column(&self, local: u32) -> Vec<u32> {
        self.members.iter().map(|members| members[local as usize]).collect()
    }

    /// Returns the first so many nodes, with their ranks counted anew.
    pub(crate) fn first(&self, nodes: u32) -> Nodes {
        let kept = self.of.iter().filter(|&&node| node < nodes);
        Nodes::of(kept.map(|&node| Some(u128::from(node).to_be_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_node_belong_together() {
        let [a, b] = [Some([1; 16]), Some([2; 16])];
        let nodes = Nodes::of([b, a, None, b, None, b]);
        assert_eq!((nodes.ranks(), nodes.count(), nodes.smallest()), (6, 4, 1));
        assert_eq!(nodes.members(0), [0, 3, 5]);
        assert_eq!((0..6).map(|rank| nodes.of_rank(rank)).collect::<Vec<_>>(), [0, 1, 2, 0, 3, 0]);
        assert_eq!((nodes.local(0), nodes.local(3), nodes.local(5), nodes.local(4)), (0, 1, 2, 0));
        assert_eq!(nodes.column(0), [0, 1, 2, 4]);
        assert_eq!(nodes.first(2), Nodes::of([a, b, a, a]));
    }

    #[test]
    fn even_nodes_differ_by_one_rank_at_most() {
        for (ranks, count) in [(8, 2), (7, 3), (5, 5), (3, 1)] {
            let nodes = Nodes::even(ranks, count);
            assert_eq!((nodes.ranks(), nodes.count()), (ranks, count));
            assert!((0..count).all(|node| nodes.members(node).len() as u32 <= nodes.smallest() + 1));
        }
    }
}
