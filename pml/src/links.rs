//! A peer, the links to it, and what waits for them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};

use cableway_base::counters::Counter;
use cableway_base::{Counters, Rank};
use cableway_btl::{Capabilities, Endpoint, Flags, FragmentKind, Sent};
use slab::Slab;
use smallvec::SmallVec;

use crate::error::Error;
use crate::failover::Failover;
use crate::flow::Credit;
use crate::gathered::Gathered;
use crate::invitation::{self, Invitations};
use crate::receive::{Offers, ReceiveTransfer};
use crate::send::{Fetches, PutJob, SendTransfer};
use crate::table::Table;
use crate::wire::{BtlTag, Header, HeaderBuffer, Id};
use cableway_base::lock::{Lock, Locking, Sum};

/// Why nothing is sent to a process any more, nor comes from it.
#[derive(Clone, Debug)]
pub(crate) enum Gone {
    /// It died, or was disconnected.
    Failed(Arc<str>),
    /// It ended in good order, and all that it had sent is here.
    Left,
    /// It was never connected.
    Unreachable(Arc<str>),
}

/// A process that messages go to or come from.
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    /// Why nothing can be sent to it any more.
    gone: OnceLock<Gone>,
    /// Serialises what is sent to this peer, and its transfers. Never held together with a matching lock.
    pub(crate) links: Lock<Links>,
    /// Cost of the eager messages of this peer that were received.
    pub(crate) consumed: Sum,
    /// How much of that it was told.
    pub(crate) credited: AtomicU64,
    /// Cost of those that wait here.
    pub(crate) stored: Sum,
    /// Counts what came from it, but for eager messages.
    pub(crate) heard: AtomicU64,
    /// How invitations to it stand, as far as was told.
    pub(crate) invitations: AtomicU8,
    /// What is counted under the peer's lock, in addition to the engine's counters.
    pub(crate) counters: PeerCounters,
}

/// Counters that one peer's lock serialises, so that to count costs no atomic read-modify-write. They lie outside the
/// lock, because whoever reads them holds none.
#[derive(Default)]
pub(crate) struct PeerCounters {
    pub(crate) sends_eager: Counter,
    pub(crate) bytes_eager: Counter,
    pub(crate) sends_rendezvous: Counter,
    pub(crate) device_direct: Counter,
}

impl PeerCounters {
    /// Adds what was counted here to a sum over all peers.
    pub(crate) fn add_to(&self, sum: &Counters) {
        sum.sends_eager.add(self.sends_eager.get());
        sum.bytes_eager.add(self.bytes_eager.get());
        sum.sends_rendezvous.add(self.sends_rendezvous.get());
        sum.device_direct.add(self.device_direct.get());
    }
}

impl Peer {
    pub(crate) fn new(rank: Rank, links: Links, locking: Locking) -> Self {
        Peer {
            rank,
            gone: OnceLock::new(),
            links: Lock::new(locking, links),
            consumed: Sum::new(locking),
            credited: AtomicU64::new(0),
            stored: Sum::new(locking),
            heard: AtomicU64::new(0),
            invitations: AtomicU8::new(invitation::NONE),
            counters: PeerCounters::default(),
        }
    }

    /// Why it is gone, if it is.
    #[inline]
    pub(crate) fn gone(&self) -> Option<&Gone> {
        self.gone.get()
    }

    pub(crate) fn has_left(&self) -> bool {
        matches!(self.gone.get(), Some(Gone::Left))
    }

    /// Marks it gone; false if it was already.
    pub(crate) fn mark_gone(&self, gone: Gone) -> bool {
        self.gone.set(gone).is_ok()
    }

    /// # Errors
    /// It is gone.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.gone.get() {
            None => Ok(()),
            Some(gone) => Err(self.error(gone)),
        }
    }

    #[cold]
    fn error(&self, gone: &Gone) -> Error {
        let peer = self.rank;
        match gone {
            Gone::Failed(reason) => Error::PeerFailed { peer, reason: reason.clone() },
            Gone::Left => Error::PeerLeft { peer },
            Gone::Unreachable(reason) => Error::Unreachable { peer, reason: reason.clone() },
        }
    }
}

/// One link to a peer.
pub(crate) struct Link {
    pub(crate) endpoint: Box<dyn Endpoint>,
    /// Index of its transport in the engine.
    pub(crate) btl: usize,
    pub(crate) tag: BtlTag,
    /// Which of this transport's links to the peer it is.
    pub(crate) ordinal: u8,
    /// Never used for another link, unlike an index.
    pub(crate) serial: u32,
    /// Seconds of work that its share of striped data amounts to.
    pub(crate) load: f64,
    /// Whether a message ever left through it.
    pub(crate) carried: bool,
}

impl Link {
    #[inline]
    pub(crate) fn capabilities(&self) -> &Capabilities {
        self.endpoint.capabilities()
    }

    /// Which fragments a device copies into.
    pub(crate) fn device_kind(&self) -> FragmentKind {
        let registered = self.capabilities().flags.contains(Flags::DEVICE_FRAGMENTS);
        if registered { FragmentKind::Device } else { FragmentKind::Host }
    }
}

/// A `put`, `get` or `send_in_place` under way; its index, with the peer's rank, makes its token.
pub(crate) enum Operation {
    /// An eager message of this transfer.
    SendMessage(Id),
    /// A fragment of so many bytes.
    SendFragment(Id, u64),
    /// A piece of a message.
    Get { id: Id, offset: u64, len: u64 },
    /// A piece of the job with this index.
    Put(usize),
    /// All of a message of so many bytes, for this transfer of the receiver's.
    PutWhole { id: Id, receiver: Id, len: u64 },
}

/// Everything about a peer that its lock guards.
pub(crate) struct Links {
    /// Those that carry messages, the first being that of headers.
    pub(crate) active: SmallVec<[Link; 1]>,
    /// Those of lower exclusivity, the best last, should the active ones turn out unusable before their first message.
    pub(crate) standby: Vec<Link>,
    pub(crate) credit: Credit,
    pub(crate) sends: Table<SendTransfer>,
    pub(crate) receives: Table<ReceiveTransfer>,
    pub(crate) operations: Slab<Operation>,
    pub(crate) queues: Queues,
    pub(crate) offers: Offers,
    /// The peer is in the engine's list of those with work waiting.
    pub(crate) listed: bool,
    /// A link that broke is being replaced; `active` is empty meanwhile.
    pub(crate) failover: Option<Box<Failover>>,
    /// The longest message of such a link.
    pub(crate) longest: usize,
    /// Transports whose links were replaced, and what the peer said of each.
    pub(crate) replaced: Vec<(usize, u64)>,
    /// A link's error that is still to be dealt with, once the lock is released.
    pub(crate) broken: Option<(usize, cableway_btl::Error)>,
    /// What the peer does with small device messages.
    pub(crate) fetches: Fetches,
    /// Receives whose buffers are told before their messages are announced.
    pub(crate) invitations: Invitations,
}

/// What a busy link left over, in the order in which it is tried again.
#[derive(Default)]
pub(crate) struct Queues {
    pub(crate) control: VecDeque<Box<[u8]>>,
    /// What is to leave together, once there is some.
    pub(crate) gathered: Option<Box<Gathered>>,
    pub(crate) has_gathered: bool,
    /// Whole messages, made for a link that broke meanwhile.
    pub(crate) late: VecDeque<Box<[u8]>>,
    /// Messages whose first header has not left.
    pub(crate) starts: VecDeque<Id>,
    /// Messages with fragments to send.
    pub(crate) streams: VecDeque<Id>,
    /// Jobs with pieces to put.
    pub(crate) puts: VecDeque<usize>,
    /// Messages with pieces to get.
    pub(crate) gets: VecDeque<Id>,
    pub(crate) put_jobs: Slab<PutJob>,
}

impl Queues {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty()
            && !self.has_gathered
            && self.late.is_empty()
            && self.starts.is_empty()
            && self.streams.is_empty()
            && self.puts.is_empty()
            && self.gets.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.control.clear();
        (self.gathered, self.has_gathered) = (None, false);
        self.late.clear();
        self.starts.clear();
        self.streams.clear();
        self.puts.clear();
        self.gets.clear();
    }
}

impl Links {
    pub(crate) fn new(active: SmallVec<[Link; 1]>, standby: Vec<Link>, window: u64) -> Self {
        Links {
            active,
            standby,
            credit: Credit::new(window),
            sends: Table::default(),
            receives: Table::default(),
            operations: Slab::new(),
            queues: Queues::default(),
            offers: Offers::default(),
            listed: false,
            failover: None,
            longest: 0,
            replaced: Vec::new(),
            broken: None,
            fetches: Fetches::default(),
            invitations: Invitations::default(),
        }
    }

    /// The link that carries headers and eager messages. None once the peer has failed.
    #[inline]
    pub(crate) fn main(&mut self) -> Option<&mut Link> {
        self.active.first_mut()
    }

    /// The link that a peer's header names, if it can do what `usable` asks.
    pub(crate) fn named(&self, tag: BtlTag, ordinal: u8, usable: impl Fn(&Link) -> bool) -> Option<u32> {
        let link = self.active.iter().find(|link| link.tag == tag && link.ordinal == ordinal)?;
        usable(link).then_some(link.serial)
    }

    /// Sends a header without payload, now or as soon as the link takes it.
    pub(crate) fn control(&mut self, header: &Header) {
        self.send_gathered();
        self.message(HeaderBuffer::new(header).as_bytes());
    }

    /// The same of a message of one header or several.
    pub(crate) fn message(&mut self, bytes: &[u8]) {
        if !self.queues.control.is_empty() || !self.send_small(bytes) {
            self.queues.control.push_back(bytes.into());
        }
    }

    /// Sends queued headers, then messages that were made for a broken link; false if some are left.
    pub(crate) fn flush_control(&mut self) -> bool {
        self.send_gathered();
        let Links { active, queues, broken, .. } = self;
        while let Some(message) = queues.control.front() {
            if !send_by_first(active, broken, message) {
                return false;
            }
            queues.control.pop_front();
        }
        while let Some(message) = self.queues.late.pop_front() {
            if !self.send_small(&message) {
                self.queues.late.push_front(message);
                return false;
            }
        }
        true
    }

    /// Sends a message of few host bytes; false if the link is busy or broken.
    pub(crate) fn send_small(&mut self, message: &[u8]) -> bool {
        send_by_first(&mut self.active, &mut self.broken, message)
    }
}

/// See [`Links::send_small`].
fn send_by_first(active: &mut [Link], broken: &mut Option<(usize, cableway_btl::Error)>, message: &[u8]) -> bool {
    let Some(link) = active.first_mut() else { return false };
    match link.send_small(message, &[]) {
        Ok(sent) => sent == Sent::Done,
        Err(error) => {
            *broken = Some((link.btl, error));
            false
        }
    }
}

impl Link {
    pub(crate) fn send_small(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, cableway_btl::Error> {
        let len = header.len() + payload.len();
        if len <= self.capabilities().inline_limit && self.endpoint.send_inline(header, payload)? == Sent::Done {
            self.carried = true;
            return Ok(Sent::Done);
        }
        let Some(mut fragment) = self.endpoint.alloc(len, FragmentKind::Host)? else { return Ok(Sent::Busy) };
        fragment.write(0, header);
        fragment.write(header.len(), payload);
        self.endpoint.send(fragment, len)?;
        self.carried = true;
        Ok(Sent::Done)
    }
}
