//! The protocols' state of a peer.

use std::collections::VecDeque;

use slab::Slab;

use super::receive::Incoming;
use super::send::Outgoing;
use crate::core::{self, PeerState, Table};
use crate::protocol::context::Operation;
use crate::protocol::direct::DirectJob;
use crate::protocol::eager_fragments::{Followers, Permits};
use crate::protocol::host_costs::HostCosts;
use crate::protocol::offered::Offers;
use crate::protocol::one_copy::OneCopyHistory;
use crate::protocol::page_locked::PageLockedCopies;
use crate::protocol::put::PutJob;
use crate::wire::Id;

pub(crate) type Channel = core::Channel<State>;
pub(crate) type Slot = core::Slot<State>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) sends: Table<Outgoing>,
    pub(crate) receives: Table<Incoming>,
    pub(crate) queues: Queues,
    pub(crate) offers: Offers,
    /// The peer's messages whose data follows.
    pub(crate) followers: Followers,
    /// The sizes of messages that may leave without a request.
    pub(crate) permits: Permits,
    /// Times of host messages, once there was one.
    pub(crate) host_costs: Option<Box<HostCosts>>,
    /// Whether the peer reads eager messages faster if they are stored through the caches. `None` until that is asked
    /// of what was kept.
    pub(crate) cache_eager: Option<bool>,
    /// History of the peer's one-copy transfers.
    pub(crate) one_copy: OneCopyHistory,
    /// History of copies between page-locked and device memory.
    pub(crate) page_locked: PageLockedCopies,
}

/// Work that a busy link left over, in the order of the retries.
#[derive(Default)]
pub(crate) struct Queues {
    /// Messages whose first header has not left.
    pub(crate) starts: VecDeque<Id>,
    /// Messages with fragments to send.
    pub(crate) streams: VecDeque<Id>,
    /// Jobs with pieces to put.
    pub(crate) puts: VecDeque<usize>,
    /// Messages with pieces to get.
    pub(crate) gets: VecDeque<Id>,
    pub(crate) put_jobs: Slab<PutJob>,
    /// Direct jobs with pieces to move.
    pub(crate) direct: VecDeque<usize>,
    pub(crate) direct_jobs: Slab<DirectJob>,
}

impl Queues {
    #[inline]
    pub(crate) fn are_empty(&self) -> bool {
        let messages = self.starts.is_empty() && self.streams.is_empty();
        messages && self.puts.is_empty() && self.gets.is_empty() && self.direct.is_empty()
    }
}

impl PeerState for State {
    type Operation = Operation;

    #[inline]
    fn is_idle(&self) -> bool {
        self.queues.are_empty() && self.offers.is_empty()
    }

    /// Requests the ranges that were being fetched as fragments.
    fn links_put_away(&mut self) {
        for id in self.receives.ids() {
            if let Some(fetch) = self.receives.get_mut(id).and_then(|transfer| transfer.fetch()) {
                fetch.refuse_rest();
            }
        }
    }

    fn clear_queues(&mut self) {
        let Queues { put_jobs, direct_jobs, .. } = std::mem::take(&mut self.queues);
        self.queues = Queues { put_jobs, direct_jobs, ..Queues::default() };
    }
}
