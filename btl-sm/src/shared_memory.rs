//! The transport.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cableway_base::lock::{Lock, Locking};
use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl, Cost, Endpoint, Error, Job, Mapping, Upcalls};
use cableway_common_cuda::Devices;

use crate::NAME;
use crate::card::{Card, SocketName};
use crate::connection::{Connections, socket};
use crate::cost;
use crate::endpoint::SmEndpoint;
use crate::inner::Inner;
use crate::listener::{Unlink, listen};
use crate::peer::Status;
use crate::progress::Progress;

/// The transport between processes of this node, over shared memory.
///
/// It reaches processes of its user that run on this node and share its network namespace, or the folder that
/// `btl_sm_socket_folder` names. Nothing remains after the process ends, except a socket in such a folder, which the
/// next process that uses the folder removes.
pub struct SharedMemory {
    pub(crate) inner: Arc<Inner>,
    card: Card,
    /// Held by the thread in progress; other threads return at once.
    pub(crate) progress: Lock<Progress>,
    _socket: Option<Unlink>,
}

impl SharedMemory {
    /// Creates this process's segment and listens for peers. Pages of the segment use memory only after their first
    /// access.
    ///
    /// # Errors
    /// The system refuses a memfd or a socket, or `/proc` is missing.
    pub fn new(job: &Job, parameters: &Parameters, devices: &Devices) -> Result<Arc<Self>, Error> {
        let inner = Inner::new(job, parameters, devices)?;
        let (listener, socket, unlink) = listen(job, &parameters.btl_sm_socket_folder)
            .map_err(|error| Error::system(NAME, "listening for peers", error))?;
        let connections =
            Connections::new(listener).map_err(|error| Error::system(NAME, "watching for peers", error))?;
        if parameters.btl_sm_set_ptracer {
            crate::single_copy::let_peers_attach();
        }
        let card = Card { node: inner.node, socket };
        let progress = Lock::new(Locking::REAL, Progress::new(&inner, connections));
        Ok(Arc::new(SharedMemory { inner: Arc::new(inner), card, progress, _socket: unlink }))
    }
}

impl SharedMemory {
    fn is_of_this_user(&self, name: &SocketName) -> bool {
        let owner = socket::connect(name).and_then(|socket| socket::credentials(socket.as_fd()));
        owner.is_ok_and(|owner| owner.uid == self.inner.uid)
    }
}

impl Btl for SharedMemory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn card(&self) -> Vec<u8> {
        self.card.to_bytes()
    }

    fn expected(&self, here: bool) -> Option<Cost> {
        here.then_some(cost::SEND)
    }

    fn connect(&self, peer: Rank, card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        let card = Card::parse(card).map_err(|reason| Error::BadCard { btl: NAME, peer, reason })?;
        let here = &self.inner.node;
        if peer == self.inner.job.rank || card.node.boot_id != here.boot_id {
            return Ok(Vec::new());
        }
        if card.node.network != here.network && matches!(card.socket, SocketName::Abstract(_)) {
            log::info!(
                "{NAME}: rank {peer} is on this node but in another network namespace; name a folder that both see in \
                 btl_sm_socket_folder to share memory with it"
            );
            return Ok(Vec::new());
        }
        // Uids of another user namespace are not comparable. Only connecting shows who owns the socket.
        if card.node.user != here.user && !self.is_of_this_user(&card.socket) {
            log::info!("{NAME}: rank {peer} is on this node but of another user, as seen from here");
            return Ok(Vec::new());
        }
        let known = self.inner.peer(peer);
        if known.has_endpoint.swap(true, Relaxed) {
            let reason = format!("rank {peer} has been connected before");
            return Err(Error::Unavailable { btl: NAME, operation: "connect", reason });
        }
        let _ = known.socket.set(card.socket);
        Ok(vec![Box::new(SmEndpoint::new(self.inner.clone(), known))])
    }

    fn allocate(&self, len: usize) -> Result<Option<Mapping>, Error> {
        let made = self.inner.blocks.allocate(len);
        made.map(Some).map_err(|error| Error::system(NAME, "allocating memory for peers", error))
    }

    fn is_mappable(&self, address: *const u8, len: usize) -> bool {
        self.inner.blocks.contain(address, len)
    }

    fn is_connected(&self, peer: Rank) -> bool {
        let known = self.inner.known_peer(peer);
        known.is_some_and(|peer| peer.link.get().is_some() && peer.status() < Status::Departed)
    }

    #[inline]
    fn progress(&self, upcalls: &dyn Upcalls) -> usize {
        match self.progress.try_lock() {
            Some(mut progress) => progress.poll(&self.inner, upcalls),
            None => 0,
        }
    }

    fn finalize(&self) -> bool {
        match self.progress.try_lock() {
            Some(mut progress) => progress.connections.finish(),
            None => false,
        }
    }
}
