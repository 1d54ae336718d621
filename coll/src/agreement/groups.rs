//! The members of an intercommunicator, as one group that agrees.

/// The two groups, as a member of one of them sees them. Members of the first group have the first numbers.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// This process belongs to the first group. Both groups know which one that is.
    pub first: bool,
    /// The size of this process's group.
    pub local: u32,
    /// The size of the other group.
    pub remote: u32,
}

/// The way of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The rank that gets it.
    pub to: u32,
    /// The rank in the sender's group to which that one passes it on.
    pub relay: Option<u32>,
}

impl Groups {
    /// Returns the number of a rank of this process's group among all members.
    pub fn number(&self, rank: u32) -> u32 {
        if self.first { rank } else { self.remote + rank }
    }

    /// Returns the number of all members.
    pub fn size(&self) -> u32 {
        self.local + self.remote
    }

    /// Returns the way to a member. An intercommunicator's messages reach the other group only, whose rank 0 passes on
    /// what is for this one.
    pub fn route(&self, member: u32) -> Route {
        let boundary = if self.first { self.local } else { self.remote };
        let (in_first, rank) = if member < boundary { (true, member) } else { (false, member - boundary) };
        if in_first == self.first { Route { to: 0, relay: Some(rank) } } else { Route { to: rank, relay: None } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_reach_both_groups() {
        let route = |groups: Groups, member| {
            let Route { to, relay } = groups.route(member);
            (to, relay)
        };
        let first = Groups { first: true, local: 3, remote: 2 };
        let second = Groups { first: false, local: 2, remote: 3 };
        let all = [0, 2, 3, 4];
        assert_eq!(all.map(|member| route(first, member)), [(0, Some(0)), (0, Some(2)), (0, None), (1, None)]);
        assert_eq!(all.map(|member| route(second, member)), [(0, None), (2, None), (0, Some(0)), (0, Some(1))]);
        assert_eq!((first.number(2), second.number(1), first.size(), second.size()), (2, 4, 5, 5));
    }
}
