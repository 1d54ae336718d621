//! The transport as `pml` holds it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl, Endpoint, Error, Identity, Job, Remains, Upcalls};
use cableway_common_cuda::Devices;
use parking_lot::Mutex;

use crate::NAME;
use crate::card::Address;
use crate::connection::Service;
use crate::endpoint::OpenibEndpoint;
use crate::link::State;
use crate::port::Port;
use crate::progress::Engine;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::subnets;

/// Verbs, as one process of a job uses them.
///
/// May be shared among threads; see [`cableway_btl`] for what holds. It has a thread of its own, which sleeps unless a
/// connection is made or the device has something to say; dropping the transport ends it. Connections are closed when
/// it is dropped: in good order only after [`finalize`](Btl::finalize).
pub struct Openib {
    // Ends before what it serves.
    _service: Service,
    engine: Mutex<Engine>,
    /// Of the port's address, where it has one.
    interface: Option<String>,
    shared: Arc<Shared>,
}

impl Openib {
    /// Opens the best port that the parameters allow. None where there is none that can be had, or no libibverbs, which
    /// one line at level info says.
    ///
    /// # Errors
    /// A parameter `btl_openib_*` that cannot be honoured, or a refusal by the device.
    pub fn open(job: &Job, parameters: &Parameters, devices: &Devices) -> Result<Option<Arc<Self>>, Error> {
        let mut settings = Settings::new(parameters)?;
        let not_used = |reason: String| {
            log::info!("{NAME}: not used: {reason}");
            Ok(None)
        };
        let peers = job.size.saturating_sub(1) as usize + job.strangers as usize;
        let port = match Port::open(&settings, peers)? {
            Ok(port) => port,
            Err(reason) => return not_used(reason),
        };
        if port.list.len() < settings.queues.len() {
            cableway_base::warn_once("openib/last-receive-queue", || {
                format!(
                    "{NAME}: of btl_openib_receive_queues={} the last entry is used alone: librdmacm, which makes the \
                     connections of {}, brings one queue pair to a peer",
                    parameters.btl_openib_receive_queues, port.context.name
                )
            });
        }
        settings.queues = port.list.clone();
        warn_of_limit(&settings);
        let (shared, service) = match Service::start(port, Identity::new(job), settings, devices)? {
            Ok(started) => started,
            Err(reason) => return not_used(reason),
        };
        let engine = Mutex::new(Engine::new(Arc::clone(&shared)));
        let interface = subnets::interface(&shared.port, &shared.address);
        Ok(Some(Arc::new(Openib { _service: service, engine, interface, shared })))
    }
}

/// What tests do to a device that works.
#[doc(hidden)]
impl Openib {
    /// Leaves room for fewer completions than are kept account of, so that the queue can overflow.
    pub fn shrink_completions(&self, entries: usize) -> std::io::Result<()> {
        self.shared.port.completions.resize(entries)
    }

    /// Has so many completions more, or less, seem to be awaited.
    pub fn await_completions(&self, more: isize) {
        self.shared.under_way.fetch_add(more.cast_unsigned(), Ordering::Relaxed);
    }

    /// Has the device say something of its own accord, by its number in `enum ibv_event_type`.
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

/// Says before it hurts that too little memory may be locked.
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

    fn card(&self) -> Vec<u8> {
        self.shared.address.publish().to_vec()
    }

    fn connect(&self, rank: Rank, card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        let theirs = Address::decode(card).map_err(|reason| Error::BadCard { btl: NAME, peer: rank, reason })?;
        let ours = &self.shared.address;
        if rank == self.shared.identity.rank() || !ours.reaches(&theirs) {
            return Ok(Vec::new());
        }
        if !self.shared.settings.different_subnets && !subnets::lead(ours, self.interface.as_deref(), &theirs) {
            log::info!("{NAME}: no way leads from {} to rank {rank}", self.shared.port.context.name);
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
        let link = self.shared.link(rank);
        link.address.lock().get_or_insert(theirs);
        Ok(vec![Box::new(OpenibEndpoint::new(Arc::clone(&self.shared), link, &theirs))])
    }

    fn hears(&self, peer: Rank) -> bool {
        let known = self.shared.directory.read().by_rank.get(&peer).map(Arc::clone);
        known.is_some_and(|link| matches!(link.tx.lock().state, State::Connected(_)))
    }

    fn break_off(&self, peer: Rank) {
        let link = self.shared.link(peer);
        let error = link.error("the connection was given up here");
        self.shared.mailbox.post(|letters| letters.failures.push((link, error)));
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
            self.shared.door.close();
        }
        let mut flushed = true;
        for link in self.shared.all_links() {
            let mut tx = link.tx.lock();
            // A goodbye to each of thousands at once would be more than there is room for: the others' turn comes when
            // these have been reported.
            if matches!(tx.state, State::Connected(_)) && !tx.closing && !self.shared.has_completions() {
                flushed = false;
                continue;
            }
            tx.close(&self.shared, &link);
            // What the peer's device has acknowledged lies in the peer's buffers. Connections being made are the thread's
            // to end.
            flushed &= match tx.state {
                State::Connected(_) => tx.is_idle(),
                State::Connecting => false,
                State::Idle | State::Left { .. } | State::Broken(..) | State::Gone(..) => true,
            };
        }
        flushed
    }
}
