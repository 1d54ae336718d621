//! A network in memory: any number of links, each with its own abilities and faults.

mod btl;
mod endpoint;
mod state;
mod transfer;

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cableway_btl::{Btl, Capabilities, Flags, FragmentOwner, Job, Modex, ModexError, Rank};
use cableway_common_cuda::Devices;
use parking_lot::{Condvar, Mutex};

use btl::NetBtl;
use state::{Bytes, Severed, State};

/// Offers that a process may have open.
pub const MOST_OFFERS: usize = 4;

/// What a transport (one per `Link`) is like.
#[derive(Clone, Copy)]
pub struct Link {
    pub name: &'static str,
    /// Which of those of that name it is, where they are several.
    pub place: u8,
    /// How many links to each peer.
    pub count: usize,
    pub capabilities: Capabilities,
    /// Messages per thousand calls that are answered busy.
    pub busy: u32,
    /// One-sided operations complete later, in `progress`.
    pub asynchronous: bool,
    /// One-sided operations are refused although the flags promise them.
    pub refuses: bool,
    /// Nobody's claim of an offer succeeds.
    pub unclaimed: bool,
    /// Messages can be kept beyond their upcall.
    pub retains: bool,
    /// It costs less to have the sender store than to fetch.
    pub push: bool,
    /// So many operations of kernels are done, and then one finds no room, again and again; 0: all are done.
    pub revokes: u32,
}

impl Link {
    pub fn new(name: &'static str, flags: Flags) -> Self {
        let mut capabilities = Capabilities::send_only(4096, 32768);
        capabilities.flags |= flags;
        capabilities.inline_limit = 256;
        capabilities.device_max_send_size = 65536;
        capabilities.min_rdma_size = 8192;
        capabilities.device_min_rdma_size = 8192;
        capabilities.device_rdma_limit = 100_000;
        capabilities.get_limit = 100_000;
        capabilities.put_limit = 100_000;
        Link {
            name,
            place: 0,
            count: 1,
            capabilities,
            busy: 0,
            asynchronous: false,
            refuses: false,
            unclaimed: false,
            retains: false,
            push: false,
            revokes: 0,
        }
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}
pub struct Net {
    size: u32,
    links: Vec<Link>,
    state: Mutex<State>,
    fragments: Arc<Fragments>,
    /// Carries out one-sided operations.
    devices: Devices,
    /// To whom nothing can be sent for a while: calls wait. And how many do.
    stalled: (Mutex<(Option<Rank>, usize)>, Condvar),
    /// Whether messages of different links, or of different senders, are delivered in random order.
    pub shuffle: AtomicBool,
}
#[derive(Default)]
struct Fragments(Mutex<HashMap<u64, Vec<u8>>>);

impl FragmentOwner for Fragments {
    fn give_back(&self, _memory: NonNull<u8>, key: u64) {
        self.0.lock().remove(&key);
    }
}

impl Net {
    pub fn new(size: u32, links: &[Link], devices: &Devices) -> Arc<Self> {
        Arc::new(Net {
            size,
            links: links.to_vec(),
            state: Mutex::new(State { random: 42, ..State::default() }),
            fragments: Arc::default(),
            devices: devices.clone(),
            stalled: Default::default(),
            shuffle: AtomicBool::new(false),
        })
    }

    pub fn modex(self: &Arc<Self>, rank: Rank) -> Arc<dyn Modex> {
        Arc::new(NetModex { net: self.clone(), job: Job::new("test".into(), [0; 32], rank, self.size, 1) })
    }

    pub fn btls(self: &Arc<Self>, rank: Rank) -> Vec<Arc<dyn Btl>> {
        let btl = |index| Arc::new(NetBtl { net: self.clone(), rank, index, inside: Mutex::new(()) }) as Arc<dyn Btl>;
        (0..self.links.len()).map(btl).collect()
    }

    /// Puts bytes of a caller's making on the wire.
    pub fn inject(&self, from: Rank, to: Rank, bytes: &[u8]) {
        self.state.lock().queues.entry((from, to, 0, 0)).or_default().push_back(bytes.into());
    }

    /// Whether a transport that was to break has.
    pub fn is_severed(&self, index: usize) -> bool {
        self.state.lock().is_severed(index)
    }

    /// Takes the oldest message off the wire.
    pub fn intercept(&self, from: Rank, to: Rank) -> Option<Bytes> {
        self.state.lock().queues.get_mut(&(from, to, 0, 0))?.pop_front()
    }

    /// Messages on the wire.
    pub fn in_flight(&self) -> usize {
        self.state.lock().queues.values().map(VecDeque::len).sum()
    }

    /// Registrations that stand.
    pub fn registered(&self) -> usize {
        self.state.lock().registered.len()
    }

    /// Offers that were not ended.
    pub fn offers(&self) -> usize {
        self.state.lock().offers.len()
    }

    /// Fragments allocated and not sent.
    pub fn fragments(&self) -> usize {
        self.fragments.0.lock().len()
    }

    /// From now on a transport fails whoever uses it.
    pub fn break_btl(&self, index: usize) {
        self.state.lock().broken = Some(index);
    }

    /// Flips one bit of the `nth` message from now, if it has that many.
    pub fn corrupt(&self, nth: usize, bit: usize) {
        self.state.lock().corrupt = Some((nth, bit));
    }

    /// A transport breaks after so many events (one at least) between ranks 0 and 1, of whom some notice; the others'
    /// messages go nowhere. What was under way is lost.
    pub fn sever(&self, btl: usize, after: usize, noticing: &[Rank]) {
        let severed = Severed {
            btl,
            after,
            noticing: noticing.to_vec(),
            senders_notice: false,
            told: Vec::new(),
            reported: Vec::new(),
            asked: Vec::new(),
            failing: Vec::new(),
        };
        self.state.lock().severed.push(severed);
    }

    /// The transports that are to break do so like networks that acknowledge: whose messages are lost will notice.
    pub fn senders_notice(&self) {
        self.state.lock().severed.iter_mut().for_each(|severed| severed.senders_notice = true);
    }

    /// The transport of this rank will find that its peer has broken the rules, when it is to report a break.
    pub fn blame(&self, rank: Rank) {
        self.state.lock().blaming = Some(rank);
    }

    pub fn carried(&self, index: usize) -> usize {
        self.state.lock().carried.get(&index).copied().unwrap_or(0)
    }

    /// A process dies: its messages are lost, everybody is told.
    pub fn kill(&self, rank: Rank) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.queues.retain(|key, _| key.0 != rank && key.1 != rank);
        let mut told = Vec::new();
        for other in (0..self.size).filter(|&other| other != rank) {
            told.extend((0..self.links.len()).map(|btl| (other, btl)));
        }
        state.dead.insert(rank, told);
    }

    /// A process is not there, as who tries to connect to it finds out.
    pub fn unreachable(&self, rank: Rank) {
        self.state.lock().unreachable.push(rank);
    }

    /// Has a transport deliver nothing until [`release`](Self::release).
    pub fn hold(&self, index: usize) {
        self.state.lock().held = Some(index);
    }

    pub fn release(&self, index: usize) {
        self.state.lock().held.take_if(|held| *held == index);
    }

    /// Has every call of an endpoint to `peer` wait until [`resume`](Self::resume), as no transport should.
    pub fn stall(&self, peer: Rank) {
        self.stalled.0.lock().0 = Some(peer);
    }

    pub fn resume(&self) {
        self.stalled.0.lock().0 = None;
        self.stalled.1.notify_all();
    }

    /// How many calls wait.
    pub fn stalled_calls(&self) -> usize {
        self.stalled.0.lock().1
    }

    /// Whether `from` was asked to connect to `to`.
    pub fn was_reached(&self, from: Rank, to: Rank) -> bool {
        self.state.lock().reached.contains(&(from, to))
    }
}

struct NetModex {
    net: Arc<Net>,
    job: Job,
}

impl Modex for NetModex {
    fn job(&self) -> &Job {
        &self.job
    }
    fn put(&self, key: &str, value: &[u8]) -> Result<(), ModexError> {
        self.net.state.lock().published.insert((self.job.rank, key.to_owned()), value.to_vec());
        Ok(())
    }
    fn fence(&self) -> Result<(), ModexError> {
        Ok(())
    }
    fn get(&self, peer: Rank, key: &str) -> Result<Option<Vec<u8>>, ModexError> {
        Ok(self.net.state.lock().published.get(&(peer, key.to_owned())).cloned())
    }
}
