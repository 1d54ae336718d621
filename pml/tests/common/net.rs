//! A network in memory: as many links as wanted, each with its own abilities and faults.

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cableway_btl::{
    Access, Btl, Capabilities, Cost, Endpoint, Error, Flags, Fragment, FragmentKind, FragmentOwner, Job, Local, Modex,
    ModexError, Mover, Offer, Operation, Packed, Rank, Received, Region, Registration, Remains, Remote, RemoteHandle,
    Retain, Sent, SharedBytes, Token, Transfer, Upcalls,
};
use cableway_common_cuda::{
    Completion, Devices, Direction, Location, MemoryClass, Order, Packing, Spread, Strided, Within,
};
use parking_lot::{Condvar, Mutex};

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

/// How a one-sided operation copies.
#[derive(Clone)]
enum Way {
    Plain,
    /// A kernel packs the blocks from this position on into the other region, or unpacks them.
    Packed {
        spread: Spread,
        position: u64,
        unpack: bool,
    },
    /// So many bytes of blocks at regular distances.
    Strided {
        to: Strided,
        from: Strided,
        len: u64,
    },
    /// The kernel found no room.
    Revoked,
}

/// How an offer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OfferState {
    Prepared,
    Open,
    Claimed,
}

/// A message on its way.
type Bytes = Arc<[u8]>;

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
struct State {
    published: HashMap<(Rank, String), Vec<u8>>,
    /// By sender, receiver, transport and link.
    queues: HashMap<(Rank, Rank, usize, usize), VecDeque<Bytes>>,
    registered: HashMap<u64, Region>,
    next_handle: u64,
    /// One-sided operations to be carried out for a rank.
    operations: Vec<(Rank, usize, Token, Way, Region, Region)>,
    /// Operations of kernels so far.
    packed: u32,
    dead: HashMap<Rank, Vec<(Rank, usize)>>,
    /// Who has ended in good order, and which transports of whom are still to be told.
    left: HashMap<Rank, Vec<(Rank, usize)>>,
    /// Who has never been there.
    unreachable: Vec<Rank>,
    /// A transport that delivers nothing for a while.
    held: Option<usize>,
    /// Who has asked to be connected to whom.
    reached: Vec<(Rank, Rank)>,
    /// A transport that does not work.
    broken: Option<usize>,
    /// The message (counted from now) and its bit that will be flipped.
    corrupt: Option<(usize, usize)>,
    /// Offers that have not been ended, and how they stand.
    offers: HashMap<u64, (Rank, OfferState)>,
    next_offer: u64,
    /// What was sent by links with `FAILOVER`, by sender, receiver and transport, and how much of it was handed up.
    history: HashMap<(Rank, Rank, usize), (Vec<Bytes>, usize)>,
    /// The transports whose links are to break, or are broken.
    severed: Vec<Severed>,
    /// Whose transports say that a broken link's peer broke the rules.
    blaming: Option<Rank>,
    /// Messages that each transport was given.
    carried: HashMap<usize, usize>,
    random: u64,
}

/// A transport that breaks in the course of events.
struct Severed {
    btl: usize,
    /// How many of its events still happen; then it is broken.
    after: usize,
    /// Who notices by himself.
    noticing: Vec<Rank>,
    /// And whose messages are lost.
    senders_notice: bool,
    /// Who has been told, or notices.
    told: Vec<Rank>,
    reported: Vec<Rank>,
    asked: Vec<Rank>,
    /// Operations that will fail when that is reported.
    failing: Vec<(Rank, Token)>,
}

impl State {
    /// An event of a transport is about to happen.
    fn tick(&mut self, btl: usize) {
        let Some(severed) = self.severed.iter_mut().find(|severed| severed.btl == btl && !severed.is_broken()) else {
            return;
        };
        severed.after -= 1;
        if severed.is_broken() {
            severed.told = severed.noticing.clone();
            if severed.senders_notice {
                let lost = self.queues.iter().filter(|(key, queue)| key.2 == btl && !queue.is_empty());
                severed.told.extend(lost.map(|(key, _)| key.0));
            }
            self.queues.retain(|key, _| key.2 != btl);
            let operations = std::mem::take(&mut self.operations);
            let (lost, others): (Vec<_>, Vec<_>) = operations.into_iter().partition(|operation| operation.1 == btl);
            self.operations = others;
            severed.failing = lost.into_iter().map(|operation| (operation.0, operation.2)).collect();
        }
    }

    /// Whether the transport is broken.
    fn is_severed(&self, btl: usize) -> bool {
        self.severed.iter().any(|severed| severed.btl == btl && severed.is_broken())
    }

    /// Whether it is, and `rank` knows.
    fn knows_severed(&self, btl: usize, rank: Rank) -> bool {
        self.severed.iter().any(|severed| severed.btl == btl && severed.is_broken() && severed.told.contains(&rank))
    }
}

impl Severed {
    fn is_broken(&self) -> bool {
        self.after == 0
    }
}

impl State {
    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.random >> 33) as usize) % below.max(1)
    }
}

#[derive(Default)]
struct Fragments(Mutex<HashMap<u64, Vec<u8>>>);

impl FragmentOwner for Fragments {
    fn give_back(&self, _memory: NonNull<u8>, key: u64) {
        self.0.lock().remove(&key);
    }
}

impl Net {
    /// Makes a one-sided operation's copies.
    fn carry_out(&self, way: &Way, to: &Region, from: &Region) -> Result<(), Error> {
        match way {
            // SAFETY: both regions are registered or lent until completed.
            Way::Plain => unsafe { self.devices.copy(to.address, from.address, to.len) }.unwrap(),
            Way::Packed { spread, position, unpack } => {
                let (user, packed) = if *unpack { (to, from) } else { (from, to) };
                let len = user.len as u64;
                let mut batch = self.devices.batch(&user.location, Direction::DeviceToDevice, Order::None).unwrap();
                batch.reachable(Within::OneDevice);
                let (position, user, packed, unpack) = (*position, user.address, packed.address, *unpack);
                // SAFETY: as above, for every block.
                unsafe {
                    batch.copy_packed(&Packing { user, spread, position, packed, len, unpack, by_engines: false })
                }
                .unwrap();
                if let Err(error) = batch.finish().and_then(Completion::wait) {
                    assert!(error.wants_kernel(), "{error}");
                    let reason = error.to_string();
                    return Err(Error::Unavailable { btl: "net", operation: "packed", reason });
                }
            }
            Way::Strided { to: into, from: out_of, len } => {
                let local = if to.location.on_device() { to } else { from };
                let mut batch = self.devices.batch(&local.location, Direction::DeviceToDevice, local.order).unwrap();
                // SAFETY: as above.
                unsafe { batch.copy_strided((to.address, into), (from.address.cast_const(), out_of), *len) }.unwrap();
                batch.finish().unwrap().wait().unwrap();
            }
            Way::Revoked => {
                let reason = "no kernel found room".into();
                return Err(Error::Unavailable { btl: "net", operation: "packed", reason });
            }
        }
        Ok(())
    }

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

struct NetBtl {
    net: Arc<Net>,
    rank: Rank,
    index: usize,
    inside: Mutex<()>,
}

struct Keep(Bytes);

impl Retain for Keep {
    fn retain(&self) -> Box<dyn Send> {
        Box::new(self.0.clone())
    }
}

impl Btl for NetBtl {
    fn name(&self) -> &'static str {
        self.net.links[self.index].name
    }
    fn card(&self) -> Vec<u8> {
        vec![0]
    }
    fn place(&self, _peer: Rank) -> Option<u8> {
        Some(self.net.links[self.index].place)
    }
    fn connect(&self, peer: Rank, _card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        let link = self.net.links[self.index];
        let endpoint = |at| {
            let (net, rank, btl) = (self.net.clone(), self.rank, self.index);
            Box::new(NetEndpoint { net, rank, peer, btl, at, link }) as Box<dyn Endpoint>
        };
        Ok((0..link.count).map(endpoint).collect())
    }

    fn progress(&self, upcalls: &dyn Upcalls) -> usize {
        let Some(_inside) = self.inside.try_lock() else { return 0 };
        if self.net.state.lock().held == Some(self.index) {
            return 0;
        }
        let mut events = 0;
        let operations: Vec<_> = {
            let mut state = self.net.state.lock();
            let (mine, others) = std::mem::take(&mut state.operations)
                .into_iter()
                .partition(|operation| operation.0 == self.rank && operation.1 == self.index);
            state.operations = others;
            mine
        };
        for (_, _, token, way, to, from) in operations {
            upcalls.completed(token, self.net.carry_out(&way, &to, &from));
            events += 1;
        }
        for _ in 0..16 {
            let next = {
                let mut state = self.net.state.lock();
                let (rank, index) = (self.rank, self.index);
                let mut keys: Vec<_> = state
                    .queues
                    .iter()
                    .filter(|(key, queue)| key.1 == rank && key.2 == index && !queue.is_empty())
                    .map(|(&key, _)| key)
                    .collect();
                keys.sort_unstable();
                if keys.is_empty() {
                    break;
                }
                state.tick(self.index);
                if state.is_severed(self.index) {
                    break;
                }
                let which = if self.net.shuffle.load(Ordering::Relaxed) { state.random(keys.len()) } else { 0 };
                let key = keys[which];
                if let Some((_, handed)) = state.history.get_mut(&(key.0, key.1, key.2)) {
                    *handed += 1;
                }
                state.queues.get_mut(&key).and_then(VecDeque::pop_front).map(|bytes| (key.0, bytes))
            };
            let Some((from, bytes)) = next else { break };
            let keep = Keep(bytes.clone());
            let retain = self.net.links[self.index].retains.then_some(&keep as &dyn Retain);
            upcalls.receive(from, Received::new(SharedBytes::from_private(&bytes), retain));
            events += 1;
        }
        let failing: Vec<Token> = {
            let mut state = self.net.state.lock();
            let me = self.rank;
            let to_report = |severed: &&mut Severed| {
                severed.btl == self.index && severed.told.contains(&me) && !severed.reported.contains(&me)
            };
            match state.severed.iter_mut().find(to_report) {
                Some(severed) => {
                    severed.reported.push(me);
                    let (mine, others) = std::mem::take(&mut severed.failing).into_iter().partition(|one| one.0 == me);
                    severed.failing = others;
                    mine.into_iter().map(|one: (Rank, Token)| one.1).chain([SEVERED]).collect()
                }
                _ => Vec::new(),
            }
        };
        for token in failing {
            match token {
                SEVERED if self.net.state.lock().blaming == Some(self.rank) => {
                    let reason = "it broke the rules".into();
                    upcalls.peer_failed(1 - self.rank, Error::Malformed { btl: "net", peer: 1 - self.rank, reason });
                }
                SEVERED => upcalls.peer_failed(1 - self.rank, gone(1 - self.rank)),
                token => upcalls.completed(token, Err(gone(1 - self.rank))),
            }
            events += 1;
        }
        let dead: Vec<Rank> = {
            let mut state = self.net.state.lock();
            let me = (self.rank, self.index);
            let dead = state.dead.iter_mut().filter_map(|(&dead, told)| {
                let at = told.iter().position(|&other| other == me)?;
                told.remove(at);
                Some(dead)
            });
            dead.collect()
        };
        for peer in dead {
            upcalls.peer_failed(peer, gone(peer));
            events += 1;
        }
        let left: Vec<Rank> = {
            let mut state = self.net.state.lock();
            let State { left, queues, .. } = &mut *state;
            let me = (self.rank, self.index);
            let left = left.iter_mut().filter_map(|(&peer, told)| {
                // What it had sent comes first.
                let empty = |at| queues.get(&(peer, self.rank, self.index, at)).is_none_or(VecDeque::is_empty);
                let all = (0..self.net.links[self.index].count).all(empty);
                let at = told.iter().position(|&other| all && other == me)?;
                told.remove(at);
                Some(peer)
            });
            left.collect()
        };
        for peer in left {
            upcalls.peer_left(peer);
            events += 1;
        }
        events
    }

    fn hears(&self, peer: Rank) -> bool {
        let state = self.net.state.lock();
        let told =
            |list: Option<&Vec<(Rank, usize)>>| list.is_some_and(|told| !told.contains(&(self.rank, self.index)));
        !told(state.dead.get(&peer)) && !told(state.left.get(&peer))
    }

    fn break_off(&self, peer: Rank) {
        let mut state = self.net.state.lock();
        let me = self.rank;
        let concerned = |severed: &&mut Severed| severed.btl == self.index && severed.is_broken() && peer == 1 - me;
        if let Some(severed) = state.severed.iter_mut().find(concerned)
            && !severed.told.contains(&me)
        {
            severed.told.push(me);
        }
    }

    fn remains(&self, peer: Rank) -> Option<Remains> {
        let mut state = self.net.state.lock();
        let (me, btl) = (self.rank, self.index);
        let severed = state.severed.iter_mut().find(|severed| severed.btl == btl && severed.reported.contains(&me))?;
        if severed.asked.contains(&me) {
            return None;
        }
        severed.asked.push(me);
        let received = state.history.get(&(peer, me, btl)).map_or(0, |history| history.1) as u64;
        let handed = state.history.get(&(me, peer, btl)).map_or(0, |history| history.1);
        let delivered = state.random(handed + 1);
        let sent = state.history.get(&(me, peer, btl)).map_or(&[][..], |history| &history.0);
        let uncertain = sent[delivered..].iter().map(|bytes| (**bytes).into()).collect();
        Some(Remains { received, delivered: delivered as u64, uncertain })
    }

    fn finalize(&self) -> bool {
        let mut state = self.net.state.lock();
        let others = (0..self.net.size).filter(|&other| other != self.rank);
        let told = state.left.entry(self.rank).or_default();
        told.retain(|other| other.1 != self.index);
        told.extend(others.map(|other| (other, self.index)));
        true
    }
}

/// Stands for the report that a transport is broken.
const SEVERED: Token = Token(u64::MAX);

fn gone(peer: Rank) -> Error {
    Error::PeerGone { btl: "net", peer, reason: "it was killed".into() }
}

struct NetEndpoint {
    net: Arc<Net>,
    rank: Rank,
    peer: Rank,
    btl: usize,
    at: usize,
    link: Link,
}

impl NetEndpoint {
    fn busy(&self) -> Result<bool, Error> {
        let mut stalled = self.net.stalled.0.lock();
        while stalled.0 == Some(self.peer) {
            stalled.1 += 1;
            self.net.stalled.1.wait(&mut stalled);
            stalled.1 -= 1;
        }
        drop(stalled);
        let mut state = self.net.state.lock();
        if state.broken == Some(self.btl) || state.unreachable.contains(&self.peer) {
            return Err(Error::Unreachable { btl: "net", peer: self.peer, reason: "it is broken".into() });
        }
        if state.dead.contains_key(&self.peer) || state.knows_severed(self.btl, self.rank) {
            return Err(gone(self.peer));
        }
        if state.left.contains_key(&self.peer) {
            return Err(Error::PeerLeft { btl: "net", peer: self.peer });
        }
        Ok(self.link.busy != 0 && state.random(1000) < self.link.busy as usize)
    }

    fn push(&self, mut bytes: Vec<u8>) {
        let key = (self.rank, self.peer, self.btl, self.at);
        let mut state = self.net.state.lock();
        *state.carried.entry(self.btl).or_default() += 1;
        state.tick(self.btl);
        match &mut state.corrupt {
            Some((0, bit)) => {
                if let Some(byte) = bytes.get_mut(*bit / 8) {
                    *byte ^= 1 << (*bit % 8);
                }
                state.corrupt = None;
            }
            Some((nth, _)) => *nth -= 1,
            None => {}
        }
        let bytes: Bytes = bytes.into();
        if self.link.capabilities.flags.contains(Flags::FAILOVER) {
            state.history.entry((key.0, key.1, key.2)).or_default().0.push(bytes.clone());
            if state.is_severed(self.btl) {
                let lost = |severed: &&mut Severed| severed.btl == self.btl && severed.senders_notice;
                if let Some(severed) = state.severed.iter_mut().find(lost)
                    && !severed.told.contains(&self.rank)
                {
                    severed.told.push(self.rank);
                }
                return;
            }
        }
        state.queues.entry(key).or_default().push_back(bytes);
    }

    fn transfer(&self, to: Region, from: Region, way: Way, token: Token) -> Result<Transfer, Error> {
        assert!(to.len == from.len || matches!(way, Way::Strided { .. }));
        if self.busy()? {
            return Ok(Transfer::Busy);
        }
        let mut state = self.net.state.lock();
        state.tick(self.btl);
        if state.is_severed(self.btl)
            && let Some(severed) = state.severed.iter_mut().find(|severed| severed.btl == self.btl)
        {
            severed.failing.push((self.rank, token));
            return Ok(Transfer::Started);
        }
        drop(state);
        if self.link.asynchronous {
            self.net.state.lock().operations.push((self.rank, self.btl, token, way, to, from));
            return Ok(Transfer::Started);
        }
        self.net.carry_out(&way, &to, &from)?;
        Ok(Transfer::Done)
    }

    /// A `get` or a `put`.
    fn move_data(&self, local: &Local<'_>, remote: &Remote<'_>, token: Token, get: bool) -> Result<Transfer, Error> {
        let (ours, theirs, way) = match (local, remote.blocks) {
            (Local::Packed(packed), _) => return self.packed(packed, (remote.handle, remote.offset), token, get),
            (&Local::Run(local), None) => {
                let limits = &self.link.capabilities;
                assert!(local.len <= if get { limits.get_limit } else { limits.put_limit });
                if !self.is_reached(&local) {
                    let reason = "it cannot be registered".into();
                    return Err(Error::Unavailable { btl: "net", operation: "transfer", reason });
                }
                (local, self.remote(remote.handle, remote.offset, local.len)?, Way::Plain)
            }
            (&(Local::Run(region) | Local::Blocks { region, .. }), blocks) => {
                let len = local.len();
                let here = match local {
                    Local::Blocks { blocks, .. } => *blocks,
                    _ => Strided::run(len),
                };
                let blocks = blocks.unwrap_or_else(|| Strided::run(len));
                let theirs = self.remote(remote.handle, 0, blocks.span().unwrap().1 as usize)?;
                let (to, from) = if get { (here, blocks) } else { (blocks, here) };
                (region, theirs, Way::Strided { to, from, len })
            }
        };
        let (to, from) = if get { (ours, theirs) } else { (theirs, ours) };
        self.transfer(to, from, way, token)
    }

    fn packed(
        &self,
        local: &Packed<'_>,
        (handle, offset): (&RemoteHandle, u64),
        token: Token,
        unpack: bool,
    ) -> Result<Transfer, Error> {
        assert!(self.link.capabilities.flags.contains(Flags::DEVICE_PACKED));
        assert!(local.len <= self.link.capabilities.device_rdma_limit);
        assert_eq!(local.order, Order::None, "a kernel cannot be told from one that waits for the stream");
        let remote = self.remote(handle, offset, local.len)?;
        if !self.net.devices.classify(remote.address, remote.len).on_device() {
            let reason = "the remote memory is no device's".into();
            return Err(Error::Unavailable { btl: "net", operation: "packed", reason });
        }
        let user = Region { address: local.user, len: local.len, location: local.location, order: local.order };
        let way = {
            let mut state = self.net.state.lock();
            state.packed += 1;
            let revoked = self.link.revokes != 0 && state.packed.is_multiple_of(self.link.revokes + 1);
            let (spread, position) = (local.spread.clone(), local.position);
            if revoked { Way::Revoked } else { Way::Packed { spread, position, unpack } }
        };
        let (to, from) = if unpack { (user, remote) } else { (remote, user) };
        self.transfer(to, from, way, token)
    }

    /// Whether the network itself can reach it; then nobody may have work in the default stream there.
    fn is_reached(&self, region: &Region) -> bool {
        if !self.link.capabilities.flags.contains(Flags::DEVICE_DIRECT) || !region.location.on_device() {
            return true;
        }
        let reached = region.location.class == MemoryClass::Device;
        assert!(region.len <= self.link.capabilities.device_max_rdma_size);
        assert!(!reached || self.net.devices.ask_default_stream(&region.location).unwrap(), "it was not waited for");
        reached
    }

    fn remote(&self, handle: &RemoteHandle, offset: u64, len: usize) -> Result<Region, Error> {
        let refused = Error::Unavailable { btl: "net", operation: "get", reason: "it was told to refuse".into() };
        if self.link.refuses {
            return Err(refused);
        }
        let key = u64::from_le_bytes(handle.as_bytes().try_into().map_err(|_| refused.clone())?);
        // As a real transport does, it trusts no handle.
        let region = *self.net.state.lock().registered.get(&key).ok_or_else(|| refused.clone())?;
        if offset as usize + len > region.len {
            return Err(refused);
        }
        assert!(self.is_reached(&region));
        Ok(Region {
            address: region.address.wrapping_add(offset as usize),
            len,
            location: Location::HOST,
            order: Order::None,
        })
    }
}

struct Unregister(Arc<Net>, u64);

impl Drop for Unregister {
    fn drop(&mut self) {
        self.0.state.lock().registered.remove(&self.1);
    }
}

impl Endpoint for NetEndpoint {
    fn peer(&self) -> Rank {
        self.peer
    }
    fn capabilities(&self) -> &Capabilities {
        &self.link.capabilities
    }
    fn cost(&self, operation: Operation, _location: &Location) -> Cost {
        let dear = operation == Operation::Put && !self.link.push;
        let fixed = self.link.capabilities.latency + Duration::from_micros(if dear { 150 } else { 0 });
        Cost { fixed, bytes_per_second: self.link.capabilities.bandwidth }
    }

    fn connect(&mut self) -> Result<(), Error> {
        self.net.state.lock().reached.push((self.rank, self.peer));
        self.busy().map(drop)
    }

    fn transfer_cost(&self, mover: Mover, _local: &Location, _remote: &RemoteHandle) -> Cost {
        let dear = (mover.operation() == Operation::Get) == self.link.push;
        Cost { fixed: Duration::from_micros(if dear { 150 } else { 10 }), bytes_per_second: 1e9 }
    }

    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error> {
        assert!(header.len() + payload.len() <= self.link.capabilities.inline_limit);
        if self.busy()? {
            return Ok(Sent::Busy);
        }
        self.push([header, payload].concat());
        Ok(Sent::Done)
    }

    fn alloc(&mut self, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let limit = match kind {
            FragmentKind::Host => self.link.capabilities.max_send_size,
            FragmentKind::Device => self.link.capabilities.device_max_send_size,
        };
        assert!(len <= limit);
        if self.busy()? {
            return Ok(None);
        }
        let mut memory = vec![0xee; len.max(1)];
        let address = NonNull::new(memory.as_mut_ptr()).unwrap();
        let mut fragments = self.net.fragments.0.lock();
        let key = address.as_ptr() as u64;
        fragments.insert(key, memory);
        // SAFETY: the vector stays where it is until the key comes back.
        Ok(Some(unsafe { Fragment::new(address, len, key, self.net.fragments.clone()) }))
    }

    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error> {
        let mut memory = self.net.fragments.0.lock().remove(&fragment.into_key()).unwrap();
        let dead = self.net.state.lock().dead.contains_key(&self.peer);
        if dead {
            return Err(gone(self.peer));
        }
        memory.truncate(len);
        self.push(memory);
        Ok(())
    }

    unsafe fn send_in_place(&mut self, header: &[u8], payload: Region, token: Token) -> Result<Transfer, Error> {
        assert!(self.link.capabilities.flags.contains(Flags::SEND_IN_PLACE));
        let Capabilities { max_send_size, device_max_send_size, .. } = self.link.capabilities;
        assert!(header.len() + payload.len <= max_send_size.max(device_max_send_size));
        if self.busy()? {
            return Ok(Transfer::Busy);
        }
        // SAFETY: the caller's promise.
        let data = unsafe { std::slice::from_raw_parts(payload.address, payload.len) };
        self.push([header, data].concat());
        if !self.link.asynchronous {
            return Ok(Transfer::Done);
        }
        let nothing = Region { len: 0, ..payload };
        self.net.state.lock().operations.push((self.rank, self.btl, token, Way::Plain, nothing, nothing));
        Ok(Transfer::Started)
    }

    unsafe fn register(&mut self, region: Region, access: Access) -> Result<Option<Registration>, Error> {
        let flag = match (access, region.location.on_device()) {
            (Access::RemoteRead, false) => Flags::GET,
            (Access::RemoteRead, true) => Flags::DEVICE_GET,
            (Access::RemoteWrite, false) => Flags::PUT,
            (Access::RemoteWrite, true) => Flags::DEVICE_PUT,
        };
        assert!(self.link.capabilities.flags.contains(flag));
        let direct = self.link.capabilities.flags.contains(Flags::DEVICE_DIRECT);
        if direct && region.location.class == MemoryClass::Managed {
            return Ok(None);
        }
        let mut state = self.net.state.lock();
        state.next_handle += 1;
        let key = state.next_handle;
        state.registered.insert(key, region);
        let keeper = Unregister(self.net.clone(), key);
        let handle = RemoteHandle::new(&key.to_le_bytes()).unwrap();
        Ok(Some(Registration::new(handle, Some(Box::new(keeper)))))
    }

    unsafe fn get(&mut self, to: &Local<'_>, from: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        self.move_data(to, from, token, true)
    }

    unsafe fn put(&mut self, from: &Local<'_>, to: &Remote<'_>, token: Token) -> Result<Transfer, Error> {
        self.move_data(from, to, token, false)
    }

    fn prepare_offer(&mut self) -> Option<Offer> {
        if !self.link.capabilities.flags.contains(Flags::OFFER) || self.busy().unwrap_or(true) {
            return None;
        }
        let mut state = self.net.state.lock();
        if state.offers.values().filter(|offer| offer.0 == self.rank).count() >= MOST_OFFERS {
            return None;
        }
        state.next_offer += 1;
        let offer = state.next_offer;
        state.offers.insert(offer, (self.rank, OfferState::Prepared));
        Some(Offer(offer))
    }

    fn open_offer(&mut self, offer: Offer) {
        let mut state = self.net.state.lock();
        let (by, stands) = state.offers.get_mut(&offer.0).expect("it is opened before it is ended");
        assert_eq!((*by, *stands), (self.rank, OfferState::Prepared));
        *stands = OfferState::Open;
    }

    fn claim(&mut self, offer: Offer) -> bool {
        let mut state = self.net.state.lock();
        let Some((by, stands)) = state.offers.get_mut(&offer.0) else { return false };
        let open = *by == self.peer && *stands == OfferState::Open && !self.link.unclaimed;
        if open {
            *stands = OfferState::Claimed;
        }
        open
    }

    fn withdraw(&mut self, offer: Offer) -> Result<bool, Error> {
        let (by, stands) = self.net.state.lock().offers.remove(&offer.0).expect("each is withdrawn once");
        assert_eq!(by, self.rank);
        Ok(stands != OfferState::Claimed)
    }
}

/// Offers that a process may have open.
pub const MOST_OFFERS: usize = 4;
