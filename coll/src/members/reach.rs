//! Who the members are that agree, and how notices get to them.

use std::sync::Arc;

use cableway_pml::Communicator;

use crate::agreement::{Groups, Route};

/// Who the members of an agreement are.
pub enum Reach {
    /// The communicator's processes.
    Within,
    /// Both groups of an intercommunicator.
    Between {
        /// The groups.
        groups: Groups,
        /// The communicator of this process's group.
        own: Option<Arc<Communicator>>,
    },
}

impl Reach {
    /// Returns the number of this process among all members, and the number of all.
    pub(super) fn number(&self, on: &Communicator) -> (u32, u32) {
        match self {
            Reach::Within => (on.rank(), on.group().len() as u32),
            Reach::Between { groups, .. } => (groups.number(on.rank()), groups.size()),
        }
    }

    /// Checks whether another process may have this one pass on notices to a rank.
    pub(super) fn relays_to(&self, rank: u32) -> bool {
        matches!(self, Reach::Between { groups, .. } if rank < groups.remote)
    }

    /// Returns the way to a member.
    pub(super) fn route(&self, member: u32) -> Route {
        match self {
            Reach::Within => Route { to: member, relay: None },
            Reach::Between { groups, .. } => groups.route(member),
        }
    }
}
