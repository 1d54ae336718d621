//! State shared by endpoints, progress and the service thread.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ahash::AHashMap;
use cableway_base::Rank;
use cableway_btl::{Error, Identity};
use cableway_common_cuda::Devices;
use parking_lot::{Mutex, RwLock};

use crate::card::Address;
use crate::connection::CommandQueue;
use crate::credits::CreditCounters;
use crate::gpudirect::GpuDirect;
use crate::inbound::Inbound;
use crate::link::{COPIED, Link};
use crate::memory::Pool;
use crate::notice_queue::NoticeQueue;
use crate::port::Port;
use crate::receives::{self, PostTarget, Receives};
use crate::registrations::Registrations;
use crate::settings::Settings;
use crate::verbs::SharedReceiveQueue;

/// Fields drop in this order: queue pairs (in the links) before the memory that they use.
pub(crate) struct Shared {
    pub(crate) directory: RwLock<Directory>,
    pub(crate) notices: NoticeQueue,
    pub(crate) command_queue: CommandQueue,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) address: Address,
    pub(crate) credit_counters: CreditCounters,
    pub(crate) pool: Arc<Pool>,
    pub(crate) registrations: Registrations,
    pub(crate) gpudirect: GpuDirect,
    /// Shared receive buffers, by the index of their queue in the list. Empty before the first connection.
    receives: Mutex<Vec<Option<Arc<Receives>>>>,
    pub(crate) devices: Devices,
    /// This process accepts no new connections.
    pub(crate) finalizing: AtomicBool,
    /// The device failed.
    pub(crate) lost: AtomicBool,
    pub(crate) port: Port,
}

/// Links by their various keys.
#[derive(Default)]
pub(crate) struct Directory {
    /// A link's id is its index here.
    pub(crate) by_id: Vec<Arc<Link>>,
    pub(crate) by_rank: AHashMap<Rank, Arc<Link>>,
    /// By queue pair number.
    pub(crate) by_number: AHashMap<u32, Arc<Inbound>>,
}

impl Shared {
    pub(crate) fn new(
        port: Port,
        command_queue: CommandQueue,
        address: Address,
        identity: Identity,
        settings: Settings,
        devices: &Devices,
    ) -> Arc<Self> {
        Arc::new(Shared {
            directory: RwLock::default(),
            notices: NoticeQueue::default(),
            command_queue,
            identity,
            address,
            credit_counters: CreditCounters::new(&port.protection),
            pool: Pool::new(&port.protection, devices, &[COPIED, settings.max_send_size]),
            registrations: Registrations::new(&port.protection, settings.registration_cache),
            gpudirect: GpuDirect::new(&port.protection, devices, &settings.direct),
            receives: Mutex::new(vec![None; settings.queues.len()]),
            devices: devices.clone(),
            finalizing: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            settings,
            port,
        })
    }

    /// Returns the link to a peer, creating it if there is none.
    pub(crate) fn link(&self, rank: Rank) -> Arc<Link> {
        if let Some(link) = self.directory.read().by_rank.get(&rank) {
            return Arc::clone(link);
        }
        let mut directory = self.directory.write();
        if let Some(link) = directory.by_rank.get(&rank) {
            return Arc::clone(link);
        }
        let link = Arc::new(Link::new(rank, directory.by_id.len() as u32, self.settings.queues.len()));
        directory.by_id.push(Arc::clone(&link));
        directory.by_rank.insert(rank, Arc::clone(&link));
        link
    }

    /// Returns the buffers of a shared queue, creating them for the first connection.
    ///
    /// # Errors
    /// Memory is exhausted, or the limit of locked memory is too low.
    pub(crate) fn receives(&self, place: usize, queue: &Arc<SharedReceiveQueue>) -> Result<Arc<Receives>, Error> {
        let mut receives = self.receives.lock();
        if let Some(receives) = &receives[place] {
            return Ok(Arc::clone(receives));
        }
        let taker = PostTarget::All(Arc::clone(queue));
        let made = Receives::new(&self.port.protection, taker, &self.devices, place, &self.port.queues[place].options)?;
        Ok(Arc::clone(receives[place].insert(made)))
    }

    /// Posts the buffer of a completion again if its connection is unknown.
    #[cold]
    pub(crate) fn repost(&self, id: u64) {
        let receives = self.receives.lock().get(receives::queue_of(id)).and_then(Option::clone);
        if let Some(receives) = receives
            && let Some(index) = receives.took(id)
        {
            receives.post(index);
        }
    }

    /// Returns every link.
    pub(crate) fn all_links(&self) -> Vec<Arc<Link>> {
        self.directory.read().by_id.clone()
    }
}
