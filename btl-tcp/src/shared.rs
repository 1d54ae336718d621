//! State shared by endpoints and the engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use cableway_base::Rank;
use cableway_btl::Identity;
use parking_lot::Mutex;

use crate::card::Card;
use crate::link::{Link, Peer, RequestQueue};
use crate::pool::Pool;
use crate::regions::Regions;
use crate::settings::Settings;

pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) card: Card,
    pub(crate) pool: Arc<Pool>,
    /// The bytes of buffers whose messages are kept beyond their upcalls.
    pub(crate) retained: Arc<AtomicUsize>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) request_queue: RequestQueue,
    pub(crate) peers: Mutex<HashMap<Rank, Arc<Peer>>>,
    /// True if this process accepts no new connections.
    pub(crate) finalizing: AtomicBool,
}

impl Shared {
    pub(crate) fn peer(&self, rank: Rank) -> Arc<Peer> {
        Arc::clone(self.peers.lock().entry(rank).or_insert_with(|| Arc::new(Peer::new(rank))))
    }

    pub(crate) fn link(&self, peer: &Arc<Peer>, number: usize) -> Arc<Link> {
        peer.link(number, &self.pool, &self.settings)
    }

    /// Returns every link of every peer.
    pub(crate) fn all_links(&self) -> Vec<Arc<Link>> {
        let peers: Vec<Arc<Peer>> = self.peers.lock().values().map(Arc::clone).collect();
        peers.iter().flat_map(|peer| peer.all_links()).collect()
    }
}
