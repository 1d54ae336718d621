//! The protocols' state of a peer.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::{Offer, RemoteHandle};
use cableway_common_cuda::Strided;
use slab::Slab;

use super::receive::Incoming;
use super::send::Outgoing;
use crate::core::{self, Peer, PeerState, Table};
use crate::protocol::context::Operation;
use crate::protocol::invitation::Invitations;
use crate::protocol::one_copy::OneCopyHistory;
use crate::wire::Id;

pub(crate) type Channel = core::Channel<State>;
pub(crate) type Slot = core::Slot<State>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) sends: Table<Outgoing>,
    pub(crate) receives: Table<Incoming>,
    pub(crate) queues: Queues,
    pub(crate) offers: Offers,
    /// History of the peer's one-copy transfers.
    pub(crate) one_copy: OneCopyHistory,
    /// Receives whose buffers are known to the sender before their messages are announced.
    pub(crate) invitations: Invitations,
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
}

impl Queues {
    #[inline]
    pub(crate) fn are_empty(&self) -> bool {
        self.starts.is_empty() && self.streams.is_empty() && self.puts.is_empty() && self.gets.is_empty()
    }
}

/// A range that the receiver asked to have stored.
pub(crate) struct PutJob {
    pub(crate) id: Id,
    pub(crate) receiver: Id,
    /// The range in the message. The handle's memory begins with its first byte.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes of it that the link took.
    pub(crate) next: u64,
    pub(crate) link: u32,
    pub(crate) handle: RemoteHandle,
    /// The blocks in the handle's memory, if there are several.
    pub(crate) blocks: Option<Strided>,
    /// Whether a kernel packs it.
    pub(crate) packed: bool,
    pub(crate) outstanding: usize,
    pub(crate) failed: bool,
}

/// Ranges of announced messages that are believed to be on offer to the peer.
#[derive(Default)]
pub(crate) struct Offers {
    /// The oldest first.
    pub(crate) open: VecDeque<OpenOffer>,
    /// The count of the peer's messages when it last changed.
    pub(crate) heard: u64,
    /// Turns since then.
    pub(crate) turns: usize,
    /// Bytes that are believed to be claimed and have not come.
    pub(crate) claimed: u64,
    /// That count when the peer was found to be away.
    pub(crate) away: Option<u64>,
}

pub(crate) struct OpenOffer {
    pub(crate) id: Id,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) link: u32,
    pub(crate) offer: Offer,
}

impl Offers {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns whether the peer was heard of since it was last found to be away.
    pub(crate) fn attentive(&self, peer: &Peer) -> bool {
        self.away != Some(peer.heard.load(Relaxed))
    }

    /// Notes that `len` bytes will not come.
    pub(crate) fn forget(&mut self, bytes: u64) {
        self.claimed = self.claimed.saturating_sub(bytes);
    }

    /// Returns whether any range of a message is on offer.
    pub(crate) fn of(&self, id: Id) -> bool {
        self.open.iter().any(|open| open.id == id)
    }
}

impl PeerState for State {
    type Operation = Operation;

    #[inline]
    fn is_idle(&self) -> bool {
        self.queues.are_empty() && self.offers.is_empty() && !self.invitations.are_pending()
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
        let put_jobs = std::mem::take(&mut self.queues.put_jobs);
        self.queues = Queues { put_jobs, ..Queues::default() };
    }
}
