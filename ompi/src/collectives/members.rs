//! The communicators with collective operations.

use std::sync::{Arc, Weak};

use cableway_coll::{Agreement, Group, Groups, Route};
use cableway_pml::Communicator;
use parking_lot::Mutex;

/// The collective operations of one communicator.
pub(crate) struct Members {
    pub(super) group: Group,
    pub(super) on: Arc<Communicator>,
    pub(super) reach: Reach,
    pub(super) agreement: Mutex<Agreement>,
}

/// Who the members are that agree.
pub(super) enum Reach {
    /// The communicator's processes.
    Within,
    /// Both groups of an intercommunicator.
    Between {
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

/// All communicators with collective operations.
pub(super) static ALL: Mutex<Vec<Weak<Members>>> = Mutex::new(Vec::new());
