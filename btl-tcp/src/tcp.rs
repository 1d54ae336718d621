//! The transport, which `pml` uses.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cableway_base::{Parameters, Rank};
use cableway_btl::process::Process;
use cableway_btl::{Btl, Cost, Endpoint, Error, Identity, Job, Upcalls};
use cableway_common_cuda::Devices;
use parking_lot::Mutex;

use crate::card::{Card, Host};
use crate::endpoint::{self, TcpEndpoint};
use crate::engine::{Engine, Epoll, SCRATCH};
use crate::link::{RequestQueue, State};
use crate::pool::Pool;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::{NAME, interfaces, listener, pairing, sys};

/// The TCP transport of one process.
///
/// It may be shared among threads; see [`cableway_btl`] for the contract. Dropping it closes the sockets. Call
/// [`finalize`](Btl::finalize) first to say goodbye.
pub struct Tcp {
    shared: Arc<Shared>,
    engine: Mutex<Engine>,
    /// Held by the engine.
    epoll: Arc<Epoll>,
}

impl Tcp {
    /// Starts to listen, so that peers can connect as soon as they have the [`card`](Btl::card).
    ///
    /// # Errors
    /// A parameter `btl_tcp_*` is invalid, no port in the range is free, or the system refuses.
    pub fn new(job: &Job, parameters: &Parameters, devices: &Devices) -> Result<Arc<Self>, Error> {
        let settings = Settings::new(parameters)?;
        let addresses = interfaces::usable(&settings)?;
        let v4 = listener::listen(false, &addresses, &settings)?;
        let v6 = listener::listen(true, &addresses, &settings)?;
        if v4.is_none() && v6.is_none() {
            cableway_base::warn_once("tcp/no-interface", || {
                format!("{NAME}: btl_tcp_if_include, btl_tcp_if_exclude and btl_tcp_family leave no interface to use")
            });
        }
        let card = Card {
            host: this_host(),
            links: settings.links,
            max_message: settings.max_message(),
            port_v4: v4.as_ref().map_or(0, |(_, port)| *port),
            port_v6: v6.as_ref().map_or(0, |(_, port)| *port),
            addresses,
            process: Process::own(),
        };
        let shared = Arc::new(Shared {
            identity: Identity::new(job),
            pool: Pool::new(devices, vec![settings.max_send_size, settings.device_max_send_size, SCRATCH]),
            retained: Arc::default(),
            settings,
            card,
            regions: Arc::default(),
            request_queue: RequestQueue::default(),
            peers: Mutex::default(),
            finalizing: AtomicBool::new(false),
        });
        let listeners = [v4, v6].into_iter().flatten().map(|(socket, _)| socket);
        let epoll = Engine::epoll()?;
        let engine = Engine::new(Arc::clone(&shared), Arc::clone(&epoll), listeners)?;
        Ok(Arc::new(Tcp { shared, engine: Mutex::new(engine), epoll }))
    }
}

impl Btl for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn card(&self) -> Vec<u8> {
        self.shared.card.encode()
    }

    fn expected(&self, here: bool) -> Option<Cost> {
        endpoint::expected(&self.shared.card.addresses, here)
    }

    fn connect(&self, rank: Rank, card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        let theirs = Card::decode(card).map_err(|reason| Error::BadCard { btl: NAME, peer: rank, reason })?;
        if rank == self.shared.identity.rank() {
            return Ok(Vec::new());
        }
        let routes = pairing::routes(&self.shared.card, &theirs);
        let links = pairing::links_per_route(&self.shared.card, &theirs, routes.len());
        let peer = self.shared.peer(rank);
        if peer.process.set(theirs.process).is_ok() {
            self.shared.request_queue.post(|requests| requests.met.push(Arc::clone(&peer)));
        }
        peer.agreed_links.store(links * routes.len(), Ordering::Relaxed);
        let mut endpoints: Vec<Box<dyn Endpoint>> = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            // If the route fails, the others are tried in order.
            let mut ways = routes.clone();
            ways.rotate_left(index);
            for number in index * links..(index + 1) * links {
                let link = self.shared.link(&peer, number);
                link.routes.lock().clone_from(&ways);
                let shared = Arc::clone(&self.shared);
                endpoints.push(Box::new(TcpEndpoint::new(shared, link, route, links, theirs.max_message)));
            }
        }
        Ok(endpoints)
    }

    fn is_connected(&self, peer: Rank) -> bool {
        let known = self.shared.peers.lock().get(&peer).map(Arc::clone);
        known.is_some_and(|peer| peer.is_connected())
    }

    fn progress(&self, upcalls: &dyn Upcalls) -> usize {
        match self.engine.try_lock() {
            Some(mut engine) => engine.progress(upcalls),
            None => 0,
        }
    }

    fn arm<'a>(&'a self, wakers: &mut Vec<BorrowedFd<'a>>) -> bool {
        let Some(mut engine) = self.engine.try_lock() else { return false };
        wakers.push(self.epoll.as_fd());
        engine.may_sleep()
    }

    fn finalize(&self) -> bool {
        self.shared.finalizing.store(true, Ordering::Release);
        let Some(mut engine) = self.engine.try_lock() else { return false };
        engine.stop_connecting();
        drop(engine);
        let mut flushed = true;
        for link in self.shared.all_links() {
            let mut tx = link.tx.lock();
            tx.close(&link, &self.shared.request_queue);
            tx.flush(&link, &self.shared.request_queue);
            tx.post_finished(&self.shared.request_queue);
            // The peer can still read everything that its kernel has acknowledged, even if closing the own end with
            // unread data resets the connection.
            flushed &= match &tx.state {
                State::Connected(socket) => {
                    tx.outbox.is_empty() && sys::unacknowledged_bytes(socket).is_ok_and(|bytes| bytes == 0)
                }
                State::Idle | State::Connecting | State::Broken(_) | State::Left(_) | State::Gone(_) => true,
            };
        }
        if flushed {
            match self.engine.try_lock() {
                Some(mut engine) => engine.stop_listening(),
                None => flushed = false,
            }
        }
        flushed
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        // Peers and links reference each other; break the cycle to free them.
        for peer in self.shared.peers.lock().values() {
            peer.links.lock().clear();
        }
    }
}

/// Returns the identity of this process's loopback interface.
fn this_host() -> Host {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut host = Host::default();
    for (byte, digits) in host.boot.iter_mut().zip(boot.replace('-', "").as_bytes().chunks_exact(2)) {
        *byte = std::str::from_utf8(digits).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
    }
    host.namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |metadata| metadata.ino());
    host
}
