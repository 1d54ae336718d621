//! The receiving side: delivers messages, and checks the connections from time to time.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use cableway_btl::{Error, Received, Retain, SharedBytes, Upcalls};
use cableway_common_cuda::Answer;

use crate::NAME;
use crate::connection::{Attached, Connections, Event};
use crate::inner::{Inner, Request};
use crate::peer::{Link, Peer, Status};
use crate::pool::{DEVICE_SMALL, FragmentWord, Reference};
use crate::prefetch;
use crate::ring::fast_box::{Arrival, MAX_INLINE, PAYLOAD, Reader};
use crate::ring::{Corrupt, fifo};
use crate::segment::{BoxMemory, FifoMemory};

/// The number of messages read from one peer before the next peer's turn.
const BATCH: usize = 32;
/// The bytes of a fragment that are fetched while its message is matched. A processor fetches about 16 lines at a time.
const FETCHED_EARLY: usize = 1024;
/// The clock is read once in this many polls, because it costs more than a poll.
const POLLS_PER_LOOK: u32 = 32;
/// If polls find messages in a fast box, one in this many checks the other sources.
const BUSY_POLLS: u32 = 4;
const _: () = assert!(POLLS_PER_LOOK.is_multiple_of(BUSY_POLLS));
/// The interval for checking sockets if nothing is in progress. Each check is a system call.
const SOCKET_INTERVAL: Duration = Duration::from_micros(200);
/// The interval for checking whether exported device memory was freed. Freed memory stays allocated until peers have
/// closed it. The check queries the driver for each allocation.
const EXPORTS_INTERVAL: Duration = Duration::from_millis(20);
/// The interval while a peer connects, which may take long.
const BUSY_INTERVAL: Duration = Duration::from_micros(5);

pub(crate) struct Progress {
    fifo: fifo::Consumer<FifoMemory>,
    /// The peers by their numbers in FIFO records.
    senders: Vec<Option<Sender>>,
    boxes: Vec<FastBox>,
    /// The buffer in which messages of several lines are assembled.
    gather: Box<[u8; MAX_INLINE]>,
    pub(crate) connections: Connections,
    polls: u32,
    /// Whether the last poll delivered from a fast box.
    busy: bool,
    next_look: Instant,
    next_look_at_exports: Instant,
}

#[derive(Clone)]
struct Sender {
    peer: Arc<Peer>,
    link: Arc<Link>,
}

struct FastBox {
    reader: Reader<BoxMemory>,
    sender: Sender,
}

impl Progress {
    pub(crate) fn new(inner: &Inner, connections: Connections) -> Self {
        Progress {
            fifo: fifo::Consumer::new(FifoMemory::new(inner.memory.clone(), inner.layout.fifo_cells)),
            senders: Vec::new(),
            boxes: Vec::new(),
            gather: Box::new([0; MAX_INLINE]),
            connections,
            polls: 0,
            busy: false,
            next_look: Instant::now(),
            next_look_at_exports: Instant::now(),
        }
    }

    /// Delivers messages and completes operations. Returns the number of events.
    #[inline]
    pub(crate) fn poll(&mut self, inner: &Inner, upcalls: &dyn Upcalls) -> usize {
        let mut events = 0;
        let mut index = 0;
        inner.device_copies.gather();
        while let Some(fast_box) = self.boxes.get_mut(index) {
            match fast_box.deliver(&mut self.gather, upcalls) {
                Ok(count) => events += count,
                Err(corrupt) => {
                    let peer = fast_box.sender.peer.clone();
                    let error = peer.malformed(corrupt.to_string());
                    self.fail(inner, &peer, error, upcalls);
                    events += 1;
                    continue;
                }
            }
            index += 1;
        }
        self.polls += 1;
        // While fast boxes are busy, only some polls check rarer sources.
        let was_busy = std::mem::replace(&mut self.busy, events != 0);
        if events != 0 && !self.polls.is_multiple_of(BUSY_POLLS) {
            // In a stream of messages, copies of several polls share a batch. After a pause the caller may not poll
            // again soon.
            inner.device_copies.end_gathering(!was_busy);
            return events;
        }
        events += self.poll_fifo(inner, upcalls);
        events += inner.device_copies.poll(upcalls);
        if let Some(requests) = inner.take_requests() {
            events += self.serve(inner, requests, upcalls);
        }
        if self.polls >= POLLS_PER_LOOK {
            self.polls = 0;
            events += self.look(inner, upcalls);
        }
        events
    }

    #[inline]
    fn poll_fifo(&mut self, inner: &Inner, upcalls: &dyn Upcalls) -> usize {
        let mut events = 0;
        while events < BATCH {
            match self.fifo.pop() {
                Ok(None) => break,
                Ok(Some(record)) => self.take_record(inner, record, upcalls),
                Err(corrupt) => log::error!("{NAME}: {corrupt}; a peer has overwritten it"),
            }
            events += 1;
        }
        self.fifo.publish();
        events
    }

    fn take_record(&mut self, inner: &Inner, record: fifo::Record, upcalls: &dyn Upcalls) {
        let Some(Some(sender)) = self.senders.get(usize::from(record.producer)) else {
            log::error!("{NAME}: a record in the FIFO has an unknown producer; a peer has overwritten it");
            return;
        };
        let sender = sender.clone();
        let taken = match record.kind {
            fifo::Kind::Fragment => deliver_fragment(&sender, Reference::from_bits(record.value), None, upcalls),
            fifo::Kind::FastBox => self.add_box(&sender, record.value as usize),
        };
        if let Err(corrupt) = taken {
            let error = sender.peer.malformed(corrupt.to_string());
            self.fail(inner, &sender.peer, error, upcalls);
        }
    }

    fn add_box(&mut self, sender: &Sender, number: usize) -> Result<(), Corrupt> {
        let layout = &sender.link.layout;
        if number >= layout.boxes || self.boxes.iter().any(|other| Arc::ptr_eq(&other.sender.peer, &sender.peer)) {
            return Err(Corrupt("a fast box is announced that does not exist, or a second one"));
        }
        let memory = BoxMemory::new(&sender.link.memory, layout.fast_box(number), layout.box_slots);
        self.boxes.push(FastBox { reader: Reader::new(memory), sender: sender.clone() });
        Ok(())
    }

    /// Handles requests of endpoints.
    #[cold]
    fn serve(&mut self, inner: &Inner, requests: Vec<Request>, upcalls: &dyn Upcalls) -> usize {
        // Handle requests at once rather than at the next socket check.
        (self.polls, self.next_look) = (POLLS_PER_LOOK, Instant::now());
        let mut events = 0;
        for request in requests {
            match request {
                Request::Connect(peer) => self.connections.call(peer),
                Request::OfferDevice(peer) => {
                    let segment = inner.device_segment();
                    let file = segment.and_then(|segment| segment.memory.file());
                    self.connections.offer_device(&peer, inner.settings.device_geometry, file);
                }
                Request::Ask(peer, wanted) => {
                    if !self.connections.ask(&peer, &wanted) {
                        inner.device_copies.supply(peer.rank, &wanted, Answer::Gone);
                    }
                }
                Request::ReportFailure(peer) => {
                    self.drop_peer(inner, &peer, upcalls);
                    events += 1;
                }
                Request::LetGo(peer) => {
                    self.let_go(inner, &peer, upcalls);
                    events += 1;
                }
                Request::Close(peer) => {
                    peer.closed.store(true, Relaxed);
                    self.connections.say_goodbye(&peer);
                }
            }
        }
        events
    }

    /// Checks the sockets when it is time.
    #[cold]
    pub(crate) fn look(&mut self, inner: &Inner, upcalls: &dyn Upcalls) -> usize {
        let now = Instant::now();
        if now < self.next_look {
            return 0;
        }
        self.connections.poll(inner);
        self.next_look = now + if self.connections.is_busy() { BUSY_INTERVAL } else { SOCKET_INTERVAL };
        if now >= self.next_look_at_exports {
            self.next_look_at_exports = now + EXPORTS_INTERVAL;
            inner.device_copies.tell_gone(|peer, id| self.connections.tell_gone(peer, id));
        }
        let mut events = 0;
        // The end of another peer has the FIFO read, which may hold messages of these peers.
        while let Some(Attached { peer, link }) = self.connections.next_attached() {
            events += 1;
            let index = usize::from(link.index);
            if self.senders.len() <= index {
                self.senders.resize(index + 1, None);
            }
            self.senders[index] = Some(Sender { peer, link });
        }
        while let Some(event) = self.connections.next_event() {
            events += 1;
            match event {
                Event::Left(peer) => {
                    events += self.drain(inner, &peer, upcalls);
                    self.let_go(inner, &peer, upcalls);
                }
                Event::Lost(peer, error) => {
                    events += self.drain(inner, &peer, upcalls);
                    self.fail(inner, &peer, error, upcalls);
                }
            }
        }
        events
    }

    /// Delivers the messages that a peer sent before it died or left.
    fn drain(&mut self, inner: &Inner, peer: &Arc<Peer>, upcalls: &dyn Upcalls) -> usize {
        let mut events = 0;
        loop {
            let mut count = self.poll_fifo(inner, upcalls);
            for fast_box in self.boxes.iter_mut().filter(|fast_box| Arc::ptr_eq(&fast_box.sender.peer, peer)) {
                // Ignore violations of a dying peer.
                count += fast_box.deliver(&mut self.gather, upcalls).unwrap_or(0);
            }
            events += count;
            if count == 0 {
                return events;
            }
        }
    }

    fn fail(&mut self, inner: &Inner, peer: &Arc<Peer>, error: Error, upcalls: &dyn Upcalls) {
        if peer.fail(error) {
            self.drop_peer(inner, peer, upcalls);
        }
    }

    /// Forgets a peer that has left, and reports it. Its connection stays until it hangs up.
    fn let_go(&mut self, inner: &Inner, peer: &Arc<Peer>, upcalls: &dyn Upcalls) {
        // Corrupt data takes precedence over the goodbye.
        if peer.status() != Status::Departed {
            return;
        }
        self.forget(inner, peer);
        if !inner.device_copies.let_go(peer.rank) {
            return inner.request(Request::LetGo(peer.clone()));
        }
        inner.release_index(peer.rank);
        if !peer.closed.load(Relaxed) {
            upcalls.peer_left(peer.rank);
        }
    }

    /// Forgets a peer that has failed, and reports it.
    fn drop_peer(&mut self, inner: &Inner, peer: &Arc<Peer>, upcalls: &dyn Upcalls) {
        self.forget(inner, peer);
        self.connections.close(peer);
        if !inner.device_copies.let_go(peer.rank) {
            return inner.request(Request::ReportFailure(peer.clone()));
        }
        if !peer.closed.load(Relaxed) {
            upcalls.peer_failed(peer.rank, peer.error());
        }
    }

    /// Stops reading from a peer, and takes back all fragments in flight to it.
    fn forget(&mut self, inner: &Inner, peer: &Arc<Peer>) {
        self.boxes.retain(|fast_box| !Arc::ptr_eq(&fast_box.sender.peer, peer));
        for sender in &mut self.senders {
            sender.take_if(|sender| Arc::ptr_eq(&sender.peer, peer));
        }
        if let Some(link) = peer.link.get() {
            inner.forget_peer(link.index);
        }
    }
}

impl FastBox {
    /// Delivers messages, up to a limit.
    #[inline]
    fn deliver(&mut self, gather: &mut [u8; MAX_INLINE], upcalls: &dyn Upcalls) -> Result<usize, Corrupt> {
        for count in 0..BATCH {
            match self.reader.next()? {
                None => return Ok(count),
                Some(Arrival::Inline { at, len }) if len <= PAYLOAD => {
                    // SAFETY: the bytes lie in memory that the reader keeps mapped, and stay ours until `release`.
                    let bytes = unsafe { SharedBytes::new(self.reader.slots().byte(at), len) };
                    upcalls.receive(self.sender.peer.rank, Received::new(bytes, None));
                }
                Some(Arrival::Inline { at, len }) => {
                    let message = &mut gather[..len];
                    self.reader.gather(at, message);
                    upcalls.receive(self.sender.peer.rank, Received::new(SharedBytes::from_private(message), None));
                }
                Some(Arrival::Fragment { reference, about }) => {
                    let about = Some(FragmentWord::from_bits(about));
                    deliver_fragment(&self.sender, Reference::from_bits(reference), about, upcalls)?;
                }
            }
            self.reader.release();
        }
        Ok(BATCH)
    }
}

/// Delivers a message in a fragment of the sender, and returns the fragment unless the message was retained. Without
/// `about`, the fragment's header has the details.
fn deliver_fragment(
    sender: &Sender,
    reference: Reference,
    about: Option<FragmentWord>,
    upcalls: &dyn Upcalls,
) -> Result<(), Corrupt> {
    let Some((memory, class)) = sender.link.resolve(reference) else {
        return Err(Corrupt("a fragment is named that does not exist"));
    };
    let header = memory.header(class, reference.id());
    let FragmentWord { generation, len } = about
        .unwrap_or_else(|| FragmentWord { generation: header.generation.load(Relaxed), len: header.len.load(Relaxed) });
    let len = len as usize;
    if len > class.size {
        return Err(Corrupt("a message is longer than its fragment"));
    }
    // SAFETY: within the fragment by the check, in memory that the link keeps mapped.
    let bytes = unsafe { SharedBytes::new(memory.payload(class, reference.id()).as_ptr(), len) };
    if reference.class() < DEVICE_SMALL {
        prefetch::for_reading(memory.payload(class, reference.id()).as_ptr(), len.min(FETCHED_EARLY));
    }
    let taken = ReceivedFragment { link: &sender.link, reference, generation, keeper: OnceCell::new() };
    // Only device segments are registered with the driver, and only they need retaining.
    let retain: Option<&dyn Retain> = if reference.class() >= DEVICE_SMALL { Some(&taken) } else { None };
    upcalls.receive(sender.peer.rank, Received::new(bytes, retain));
    if taken.keeper.get().is_none() {
        header.returned.store(generation, Release);
    }
    Ok(())
}

/// A fragment within its upcall.
struct ReceivedFragment<'a> {
    link: &'a Arc<Link>,
    reference: Reference,
    generation: u32,
    keeper: OnceCell<Arc<Keeper>>,
}

impl Retain for ReceivedFragment<'_> {
    fn retain(&self) -> Box<dyn Send> {
        let make =
            || Arc::new(Keeper { link: self.link.clone(), reference: self.reference, generation: self.generation });
        Box::new(self.keeper.get_or_init(make).clone())
    }
}

/// Returns a fragment to its owner when the last reference is dropped, on any thread.
struct Keeper {
    link: Arc<Link>,
    reference: Reference,
    generation: u32,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some((memory, class)) = self.link.resolve(self.reference) {
            memory.header(class, self.reference.id()).returned.store(self.generation, Release);
        }
    }
}
