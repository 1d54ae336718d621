//! The state of this process's shared-memory transport, which endpoints and progress share.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};

use cableway_base::{Parameters, Rank};
use cableway_btl::{Error, Job};
use cableway_common_cuda::{DescriptorRequest, Devices};
use parking_lot::Mutex;

use crate::NAME;
use crate::blocks::Blocks;
use crate::connection::wire::Hello;
use crate::device::DeviceSegment;
use crate::device_copy::DeviceCopies;
use crate::node::Node;
use crate::peer::Peer;
use crate::pool::{Pool, Reference};
use crate::segment::{Layout, Memory};
use crate::settings::Settings;

/// The number of host fragments of one class that an endpoint may have in flight.
const MOST_IN_FLIGHT: usize = 16;

pub(crate) struct Inner {
    pub(crate) job: Job,
    pub(crate) settings: Settings,
    pub(crate) node: Node,
    pub(crate) uid: u32,
    pub(crate) devices: Devices,
    pub(crate) memory: Arc<Memory>,
    pub(crate) layout: Layout,
    /// Eager fragments, and larger ones.
    pools: [Pool; 2],
    /// Created when device data is first sent. `None` if the system refused.
    device: OnceLock<Option<DeviceSegment>>,
    pub(crate) device_copies: DeviceCopies,
    /// Memory of the program that peers map.
    pub(crate) blocks: Blocks,
    peers: Mutex<HashMap<Rank, Arc<Peer>>>,
    indices: Mutex<Indices>,
    boxes_given: AtomicU32,
    /// The cookie, by which peers identify this process's memory. Boxed, because its address is published.
    cookie: Box<u64>,
    requests: Mutex<Vec<Request>>,
    has_requests: AtomicBool,
}

/// The numbers of peers as producers in the own FIFO.
#[derive(Default)]
struct Indices {
    by_rank: HashMap<Rank, u16>,
    /// The numbers of peers that are gone.
    free: Vec<u16>,
}

/// Requests of an endpoint to progress.
pub(crate) enum Request {
    /// Connect.
    Connect(Arc<Peer>),
    /// Offer the device segment.
    OfferDevice(Arc<Peer>),
    /// Request descriptors of the peer's device memory.
    Ask(Arc<Peer>, DescriptorRequest),
    /// Report the failure that is stored in the peer.
    ReportFailure(Arc<Peer>),
    /// Report that the peer has left, after device copies end.
    LetGo(Arc<Peer>),
    /// Say goodbye.
    Close(Arc<Peer>),
}

impl Inner {
    pub(crate) fn new(job: &Job, parameters: &Parameters, devices: &Devices) -> Result<Self, Error> {
        let settings = Settings::new(job, parameters);
        let system = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| Error::system(NAME, what, error)
        };
        let layout =
            settings.geometry.layout().map_err(std::io::Error::other).map_err(system("laying out a segment"))?;
        let memory = Memory::create("cableway-sm", layout.len).map_err(system("making a segment"))?;
        let memory = Arc::new(memory);
        let node = Node::of_this_process().map_err(system("finding out about this node"))?;
        let mut cookie = [0; 8];
        random(&mut cookie).map_err(system("drawing random numbers"))?;
        Ok(Inner {
            job: job.clone(),
            settings,
            node,
            uid: rustix::process::geteuid().as_raw(),
            devices: devices.clone(),
            pools: [layout.eager, layout.large].map(|class| Pool::new(memory.clone(), class, MOST_IN_FLIGHT)),
            memory,
            layout,
            device: OnceLock::new(),
            device_copies: DeviceCopies::new(devices, parameters),
            blocks: Blocks::default(),
            peers: Mutex::default(),
            indices: Mutex::default(),
            boxes_given: AtomicU32::new(0),
            cookie: Box::new(u64::from_ne_bytes(cookie)),
            requests: Mutex::default(),
            has_requests: AtomicBool::new(false),
        })
    }

    /// Returns the peer of a rank, creating it if needed.
    pub(crate) fn peer(&self, rank: Rank) -> Arc<Peer> {
        self.peers.lock().entry(rank).or_insert_with(|| Arc::new(Peer::new(rank))).clone()
    }

    /// Returns the peer of a rank, if there is one.
    pub(crate) fn known_peer(&self, rank: Rank) -> Option<Arc<Peer>> {
        self.peers.lock().get(&rank).cloned()
    }

    /// Returns the number of a rank in the own FIFO, or `None` if the FIFO has no room for one more.
    pub(crate) fn index_of(&self, rank: Rank) -> Option<u16> {
        let indices = &mut *self.indices.lock();
        if let Some(&index) = indices.by_rank.get(&rank) {
            return Some(index);
        }
        let index = match indices.free.pop() {
            Some(index) => index,
            // While none is free, the numbers in use are the first ones.
            None => {
                let next = indices.by_rank.len();
                let has_room = (next + 1) * self.layout.fifo_quota <= self.layout.fifo_cells;
                u16::try_from(next).ok().filter(|_| has_room)?
            }
        };
        indices.by_rank.insert(rank, index);
        Some(index)
    }

    /// Releases the number of a peer that is gone and whose records have all been read.
    pub(crate) fn release_index(&self, rank: Rank) {
        let indices = &mut *self.indices.lock();
        indices.free.extend(indices.by_rank.remove(&rank));
    }

    /// Returns the introduction of this process to `rank`, whose number in the own FIFO is `index`. Returns `None` if
    /// they must not communicate.
    pub(crate) fn hello(&self, rank: Rank, index: u16) -> Option<Hello> {
        Some(Hello {
            secret: self.job.secret_for(rank)?,
            from: self.job.own_name().into(),
            to: self.job.name_of(rank)?.into(),
            index: u32::from(index).into(),
            geometry: self.settings.geometry,
            cookie_address: (&raw const *self.cookie as u64).into(),
            cookie: (*self.cookie).into(),
            node: self.node,
        })
    }

    /// Returns whether single copy may be tried with a process of this pid in these namespaces.
    pub(crate) fn single_copy_allowed(&self, pid: u32, node: &Node) -> bool {
        let same_namespaces = node.pid == self.node.pid && node.user == self.node.user;
        if self.settings.single_copy && !same_namespaces && self.node.boot_id == node.boot_id {
            cableway_base::warn_once("sm/single-copy", || {
                format!(
                    "{NAME}: large messages are copied twice, because ranks are in different pid or user namespaces"
                )
            });
        }
        self.settings.single_copy && same_namespaces && pid != 0
    }

    /// Returns the pool of a class.
    pub(crate) fn pool(&self, class: u8) -> Option<&Pool> {
        match class {
            0 | 1 => self.pools.get(usize::from(class)),
            _ => self.device.get()?.as_ref()?.pools.get(usize::from(class) - 2),
        }
    }

    /// Returns the device segment. Creates it if necessary.
    pub(crate) fn device_segment(&self) -> Option<&DeviceSegment> {
        let make = || match DeviceSegment::create(&self.settings.device_geometry, &self.devices) {
            Ok(segment) => Some(segment),
            Err(error) => {
                log::warn!("{NAME}: no memory for device messages: {error}");
                None
            }
        };
        self.device.get_or_init(make).as_ref()
    }

    /// Returns a fast box for one more peer, or `None` if all are in use.
    pub(crate) fn give_box(&self) -> Option<u32> {
        let most = self.layout.boxes as u32;
        let next = |given: u32| (given < most).then_some(given + 1);
        self.boxes_given.fetch_update(Relaxed, Relaxed, next).ok()
    }

    /// Takes an unsent fragment back.
    pub(crate) fn give_back(&self, reference: Reference) {
        if let Some(pool) = self.pool(reference.class()) {
            pool.give_back(reference.id());
        }
    }

    /// Takes back all fragments in flight to a peer that is gone.
    pub(crate) fn forget_peer(&self, index: u16) {
        (0..4).filter_map(|class| self.pool(class)).for_each(|pool| pool.forget_peer(index));
    }

    pub(crate) fn request(&self, request: Request) {
        let mut requests = self.requests.lock();
        requests.push(request);
        self.has_requests.store(true, Release);
    }

    #[inline(always)]
    pub(crate) fn take_requests(&self) -> Option<Vec<Request>> {
        if self.has_requests.load(Relaxed) { self.take_requests_now() } else { None }
    }

    #[cold]
    fn take_requests_now(&self) -> Option<Vec<Request>> {
        let mut requests = self.requests.lock();
        self.has_requests.load(Acquire).then(|| {
            self.has_requests.store(false, Relaxed);
            std::mem::take(&mut *requests)
        })
    }

    /// Marks a peer as failed from outside of progress, which reports it.
    pub(crate) fn fail_from_outside(&self, peer: &Arc<Peer>, error: Error) {
        if peer.fail(error) {
            self.request(Request::ReportFailure(peer.clone()));
        }
    }
}

/// Fills `bytes` with random bytes of the system.
pub(crate) fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}
