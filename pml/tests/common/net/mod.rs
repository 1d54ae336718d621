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

/// The number of offers that a process may have open.
pub const MOST_OFFERS: usize = 4;

/// Describes a transport (one per `Link`).
#[derive(Clone, Copy)]
pub struct Link {
    pub name: &'static str,
    /// Its place among the modules of that name.
    pub place: u8,
    /// Number of links to each peer.
    pub count: usize,
    pub capabilities: Capabilities,
    /// Calls of a thousand that return busy.
    pub busy: u32,
    /// Whether one-sided operations complete later, in `progress`.
    pub asynchronous: bool,
    /// Whether one-sided operations are refused although the flags promise them.
    pub refuses: bool,
    /// Whether every claim of an offer fails.
    pub unclaimed: bool,
    /// Whether messages can be retained beyond their upcall.
    pub retains: bool,
    /// Whether a PUT by the sender costs less than a GET.
    pub push: bool,
    /// Number of kernel operations that succeed before one cannot start, repeatedly. 0: all succeed.
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
    /// The devices that carry out one-sided operations.
    devices: Devices,
    /// The peer whose endpoints stall, and the number of calls that wait.
    stalled: (Mutex<(Option<Rank>, usize)>, Condvar),
    /// Whether messages of different links or senders are delivered in random order.
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

    /// Puts forged bytes on the wire.
    pub fn inject(&self, from: Rank, to: Rank, bytes: &[u8]) {
        self.state.lock().queues.entry((from, to, 0, 0)).or_default().push_back(bytes.into());
    }

    /// Returns whether a severed transport is broken by now.
    pub fn is_severed(&self, index: usize) -> bool {
        self.state.lock().is_severed(index)
    }

    /// Removes the oldest message from the wire.
    pub fn intercept(&self, from: Rank, to: Rank) -> Option<Bytes> {
        self.state.lock().queues.get_mut(&(from, to, 0, 0))?.pop_front()
    }

    /// Returns the number of messages on the wire.
    pub fn in_flight(&self) -> usize {
        self.state.lock().queues.values().map(VecDeque::len).sum()
    }

    /// Returns the number of registrations.
    pub fn registered(&self) -> usize {
        self.state.lock().registered.len()
    }

    /// Returns the number of offers that have not ended.
    pub fn offers(&self) -> usize {
        self.state.lock().offers.len()
    }

    /// Returns the number of offers that were ever made.
    pub fn offers_made(&self) -> u64 {
        self.state.lock().next_offer
    }

    /// Returns the number of fragments that were allocated and not sent.
    pub fn fragments(&self) -> usize {
        self.fragments.0.lock().len()
    }

    /// Makes every use of a transport fail from now on.
    pub fn break_btl(&self, index: usize) {
        self.state.lock().broken = Some(index);
    }

    /// Flips one bit of the `nth` message from now, if the message is long enough.
    pub fn corrupt(&self, nth: usize, bit: usize) {
        self.state.lock().corrupt = Some((nth, bit));
    }

    /// Breaks a transport between ranks 0 and 1 after `after` events (at least one). The ranks in `noticing` notice it;
    /// messages of the other rank are lost, and so are messages under way.
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

    /// Makes severed transports behave like networks with acknowledgements: a sender notices lost messages.
    pub fn senders_notice(&self) {
        self.state.lock().severed.iter_mut().for_each(|severed| severed.senders_notice = true);
    }

    /// Makes the transport of this rank report malformed bytes of its peer instead of a break.
    pub fn blame(&self, rank: Rank) {
        self.state.lock().blaming = Some(rank);
    }

    pub fn carried(&self, index: usize) -> usize {
        self.state.lock().carried.get(&index).copied().unwrap_or(0)
    }

    /// Kills a process: its messages are lost, and all others are told.
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

    /// Makes a process unreachable: connections to it fail.
    pub fn unreachable(&self, rank: Rank) {
        self.state.lock().unreachable.push(rank);
    }

    /// Stops a transport's deliveries until [`release`](Self::release).
    pub fn hold(&self, index: usize) {
        self.state.lock().held = Some(index);
    }

    pub fn release(&self, index: usize) {
        self.state.lock().held.take_if(|held| *held == index);
    }

    /// Makes every call of an endpoint to `peer` wait until [`resume`](Self::resume). No real transport may do this.
    pub fn stall(&self, peer: Rank) {
        self.stalled.0.lock().0 = Some(peer);
    }

    pub fn resume(&self) {
        self.stalled.0.lock().0 = None;
        self.stalled.1.notify_all();
    }

    /// Returns how many calls wait.
    pub fn stalled_calls(&self) -> usize {
        self.stalled.0.lock().1
    }

    /// Returns whether `from` was asked to connect to `to`.
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
