//! The transport, which `pml` uses.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl, Cost, Endpoint, Error, Identity, Job, Remains, Upcalls};
use cableway_common_cuda::Devices;
use parking_lot::Mutex;

use crate::card::Address;
use crate::connection::Service;
use crate::cost::{HOST_COPIES, LATENCY};
use crate::endpoint::OpenibEndpoint;
use crate::link::State;
use crate::port::Port;
use crate::progress::Engine;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::{NAME, networks, subnets};

/// The module for one of the ports that a process uses.
///
/// It may be shared among threads; see [`cableway_btl`] for the contract. It has a service thread, which sleeps unless
/// a connection is being made or the device reports an event. Dropping the module ends the thread and closes
/// connections. Call [`finalize`](Btl::finalize) first to say goodbye.
pub struct Openib {
    // Dropped first, because it uses the other fields.
    _service: Service,
    engine: Mutex<Engine>,
    /// The network of the port's address, if it has one.
    interface: Option<String>,
    /// The ports that this process uses. This module uses the one at index `own`.
    ports: Arc<[Address]>,
    own: usize,
    shared: Arc<Shared>,
}

impl Openib {
    /// Opens the best ports that the parameters allow, one on each network, with a module for each. The best one comes
    /// first. Returns none, and logs one line at level info, if no port is usable or libibverbs is missing.
    /// # Errors
    /// A parameter `btl_openib_*` is invalid, or the best device refuses.
    pub fn open(job: &Job, parameters: &Parameters, devices: &Devices) -> Result<Vec<Arc<Self>>, Error> {
        let settings = Settings::new(parameters)?;
        let peers = job.size.saturating_sub(1) as usize + job.foreign_processes as usize;
        let ports = match Port::open_all(&settings, peers)? {
            Ok(ports) => ports,
            Err(reason) => {
                log::info!("{NAME}: not used: {reason}");
                return Ok(Vec::new());
            }
        };
        // The limit of locked memory applies to all modules together.
        let cache = settings.registration_cache.min(crate::memory::lockable(usize::MAX) / ports.len());
        let mut started = Vec::new();
        for port in ports {
            if port.list.len() < settings.queues.len() {
                cableway_base::warn_once("openib/last-receive-queue", || {
                    format!(
                        "{NAME}: of btl_openib_receive_queues={} the last entry is used alone: librdmacm, which makes \
                         the connections of {}, brings one queue pair to a peer",
                        parameters.btl_openib_receive_queues, port.context.name
                    )
                });
            }
            let name = port.context.name.clone();
            let settings = Settings { queues: port.list.clone(), registration_cache: cache, ..settings.clone() };
            warn_of_limit(&settings);
            match Service::start(port, Identity::new(job), settings, devices) {
                Ok(Ok(service)) => started.push(service),
                Ok(Err(reason)) => log::info!("{NAME}: {name} is not used: {reason}"),
                Err(error) if started.is_empty() => return Err(error),
                Err(error) => log::warn!("{error}; {name} is not used"),
            }
        }
        let ports: Arc<[Address]> = started.iter().map(|(shared, _)| shared.address).collect();
        let module = |(own, (shared, service)): (usize, (Arc<Shared>, Service))| {
            let engine = Mutex::new(Engine::new(Arc::clone(&shared)));
            let interface = subnets::interface(&shared.port, &shared.address);
            Arc::new(Openib { _service: service, engine, interface, ports: Arc::clone(&ports), own, shared })
        };
        Ok(started.into_iter().enumerate().map(module).collect())
    }
}

/// Faults that tests inject.
#[doc(hidden)]
impl Openib {
    /// Leaves room for fewer completions than are counted, so that the queue can overflow.
    pub fn shrink_completions(&self, entries: usize) -> std::io::Result<()> {
        self.shared.port.completions.resize(entries)
    }

    /// Changes the number of awaited completions.
    pub fn await_completions(&self, more: isize) {
        self.shared.port.under_way.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
    }

    /// Injects an asynchronous event, by its number in `enum ibv_event_type`.
    pub fn hear_event(&self, kind: i32) {
        crate::connection::hear_event(&self.shared, &crate::verbs::Event { kind, queue_pair: None });
    }
}

#[cfg(test)]
impl Openib {
    pub(crate) fn link_to(&self, rank: Rank) -> Arc<crate::link::Link> {
        self.shared.link(rank)
    }
}

/// Warns early if the limit of locked memory is too low.
fn warn_of_limit(settings: &Settings) {
    let needed: usize = settings.queues.iter().map(|queue| 2 * queue.size * queue.count).sum();
    if let Some(limit) = crate::memory::lock_limit()
        && limit < needed as u64
    {
        cableway_base::warn_once("openib/memlock", || {
            format!(
                "{NAME}: this process may lock {limit} bytes of memory, and buffers alone take about {needed}: raise \
                 it with 'ulimit -l unlimited', or memlock in /etc/security/limits.conf, or LimitMEMLOCK where a \
                 service starts the job"
            )
        });
    }
}

impl Btl for Openib {
    fn name(&self) -> &'static str {
        NAME
    }

    fn label(&self) -> String {
        match &self.ports[..] {
            [_] => NAME.to_owned(),
            _ => format!("{NAME} ({} port {})", self.shared.port.context.name, self.shared.port.facts.number),
        }
    }

    fn card(&self) -> Vec<u8> {
        self.ports.iter().flat_map(Address::publish).collect()
    }

    fn expected(&self, _here: bool) -> Option<Cost> {
        let bandwidth = self.shared.port.facts.megabits() as f64 * 1e6 / 8.0;
        Some(Cost { fixed: LATENCY, bytes_per_second: HOST_COPIES * bandwidth })
    }

    fn connect(&self, rank: Rank, card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        let theirs = Address::decode(card).map_err(|reason| Error::BadCard { btl: NAME, peer: rank, reason })?;
        if rank == self.shared.identity.rank() {
            return Ok(Vec::new());
        }
        let decides = self.shared.identity.decides(rank);
        let partner = networks::partner(&self.ports, self.own, &theirs, decides);
        let Some((place, theirs)) = partner else { return Ok(Vec::new()) };
        let ours = &self.shared.address;
        // Create the link even without a route: the peer may have one to this process.
        let link = self.shared.link(rank);
        let place = *link.place.get_or_init(|| place);
        if !self.shared.settings.different_subnets && !subnets::lead(ours, self.interface.as_deref(), theirs) {
            log::info!("{NAME}: no route leads from {} to rank {rank}", self.shared.port.context.name);
            return Ok(Vec::new());
        }
        let (here, there) = (self.shared.address.queues, theirs.queues);
        if here != there {
            cableway_base::warn_once("openib/receive-queues", || {
                format!(
                    "{NAME}: rank {rank} has {there} receive queues, this process {here}: it is not reached by verbs; set \
                     btl_openib_receive_queues alike in all processes"
                )
            });
            return Ok(Vec::new());
        }
        link.address.lock().get_or_insert(*theirs);
        Ok(vec![Box::new(OpenibEndpoint::new(Arc::clone(&self.shared), link, theirs, place))])
    }

    fn place(&self, peer: Rank) -> Option<u8> {
        self.shared.directory.read().by_rank.get(&peer)?.place.get().copied()
    }

    fn is_connected(&self, peer: Rank) -> bool {
        let known = self.shared.directory.read().by_rank.get(&peer).map(Arc::clone);
        known.is_some_and(|link| matches!(link.tx.lock().state, State::Connected(_)))
    }

    fn break_off(&self, peer: Rank) {
        let link = self.shared.link(peer);
        let error = link.error("the connection was given up here");
        self.shared.notices.post(|notices| notices.failures.push((link, error)));
    }

    fn remains(&self, peer: Rank) -> Option<Remains> {
        let link = self.shared.link(peer);
        let received = link.consumed.load(Ordering::Relaxed);
        link.tx.lock().remains(received)
    }

    fn progress(&self, upcalls: &dyn Upcalls) -> usize {
        match self.engine.try_lock() {
            Some(mut engine) => engine.progress(upcalls),
            None => 0,
        }
    }

    fn arm<'a>(&'a self, wakers: &mut Vec<BorrowedFd<'a>>) -> bool {
        self.engine.try_lock().is_some_and(|engine| engine.arm(&self.shared, wakers))
    }

    fn finalize(&self) -> bool {
        if !self.shared.finalizing.swap(true, Ordering::AcqRel) {
            self.shared.command_queue.close();
        }
        let mut flushed = true;
        for link in self.shared.all_links() {
            let mut tx = link.tx.lock();
            // Goodbyes to thousands of peers at once may exceed the completion queue. The others are sent when these
            // have completed.
            if matches!(tx.state, State::Connected(_)) && !tx.closing && !self.shared.port.has_completions() {
                flushed = false;
                continue;
            }
            tx.close(&self.shared, &link);
            // Data that the peer's device has acknowledged is in the peer's buffers. The service thread ends
            // connections that are being made.
            flushed &= match tx.state {
                State::Connected(_) => tx.is_idle(),
                // Messages under way on a broken connection may need another transport.
                State::Connecting | State::Broken(..) => false,
                State::Idle | State::Left { .. } | State::Gone(..) => true,
            };
        }
        flushed
    }
}
