//! A peer, the connection to it, and the work in flight on it.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};

use cableway_base::Rank;
use cableway_btl::Error;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::NAME;
use crate::card::Address;
use crate::credits::CreditCounter;
use crate::kept::Kept;
use crate::order::Arrivals;
use crate::work::{ConnectedQp, WorkList};

mod closing;
mod sending;

#[cfg(test)]
mod tests;

/// The longest message that is copied and sent at once.
pub(crate) const COPIED: usize = 4 << 10;

/// The link to a peer process.
pub(crate) struct Link {
    pub(crate) rank: Rank,
    /// The link's index in the directory.
    pub(crate) id: u32,
    /// The peer's address; none until either side wants to send.
    pub(crate) address: Mutex<Option<Address>>,
    pub(crate) tx: Mutex<Tx>,
    /// The control messages on networks without immediate data. Locked after `tx`.
    pub(crate) control: Mutex<Option<Box<ControlMessages>>>,
    /// The number of the peer's messages that were delivered here.
    pub(crate) consumed: AtomicU64,
    /// The number of these messages that were credited to the peer.
    pub(crate) told: AtomicU64,
    /// The index of the network among those of both processes. Set when the peer's card is read.
    pub(crate) place: OnceLock<u8>,
    /// Later messages of the peer are dropped.
    pub(crate) silenced: AtomicBool,
    /// `peer_failed` or `peer_left` was called, or is about to be called.
    pub(crate) reported: AtomicBool,
    /// The order of messages, if there are several queue pairs. Only progress uses it.
    pub(crate) arrivals: Option<Box<Mutex<Arrivals>>>,
}

/// The sending side of a link.
pub(crate) struct Tx {
    pub(crate) state: State,
    /// The work of each queue pair.
    pub(crate) works: SmallVec<[WorkList; 1]>,
    /// Messages sent that the peer may not have consumed.
    kept: Kept,
    /// With several queue pairs: the index of the queue pair of each message that may not be consumed.
    message_qps: VecDeque<u8>,
    /// Another transport has taken the remains of the broken connection.
    settled: bool,
    /// The connection was never established.
    pub(crate) unmade: bool,
    /// The device refused the work that should report all earlier work.
    pub(crate) mute: bool,
    /// This process closes the link. No message may be sent.
    pub(crate) closing: bool,
}

/// A queue pair stays until the transport closes, even after a failure, because destroying it would lose the receive
/// buffers that the device has assigned to it.
pub(crate) enum State {
    /// Neither side has sent yet.
    Idle,
    /// The service makes a connection.
    Connecting,
    Connected(Connection),
    /// The peer has said goodbye. Work in flight is being flushed.
    Left {
        kept: Option<Connection>,
    },
    /// The connection broke. Work in flight is being flushed.
    Broken(Connection, Error),
    /// No work is in flight.
    Gone(Error, Option<Connection>),
}

/// The connected queue pairs, as this end sees them.
pub(crate) struct Connection {
    /// One queue pair for each receive queue of the peer, in the order of growing buffers.
    pub(crate) qps: SmallVec<[ConnectedQp; 1]>,
    /// The peer's credits: the number of messages that it has consumed.
    pub(crate) credits: CreditCounter,
    /// The address and rkey of the peer's credit counter.
    pub(crate) their_credits: (u64, u32),
}

impl Connection {
    /// Returns the queue pair for messages of `len` bytes, or the last one if none is large enough.
    #[inline]
    pub(crate) fn qp(&self, len: usize) -> usize {
        let last = self.qps.len() - 1;
        self.qps[..last].iter().position(|qp| qp.size >= len).unwrap_or(last)
    }
}

/// A control message of this transport. Only the two ends of a connection can compute its contents.
pub(crate) type ControlMessage = [u8; 32];

/// The control messages of a connection over iWARP, which has no immediate data.
pub(crate) struct ControlMessages {
    /// The active side's first message. The passive side must send nothing before it (RFC 5044).
    pub(crate) greeting: ControlMessage,
    /// The last message.
    pub(crate) goodbye: ControlMessage,
    /// This end is the active side.
    pub(crate) greets: bool,
    /// The connection of a passive side that waits for the greeting.
    pub(crate) accepted: Option<Connection>,
}

/// The kind of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    Greeting,
    Goodbye,
}

impl Link {
    /// Creates a link with `queues` queue pairs.
    pub(crate) fn new(rank: Rank, id: u32, queues: usize) -> Self {
        let tx = Tx {
            state: State::Idle,
            works: std::iter::repeat_with(WorkList::default).take(queues).collect(),
            kept: Kept::default(),
            message_qps: VecDeque::new(),
            settled: false,
            unmade: false,
            mute: false,
            closing: false,
        };
        Link {
            rank,
            id,
            address: Mutex::default(),
            tx: Mutex::new(tx),
            control: Mutex::new(None),
            consumed: AtomicU64::new(0),
            told: AtomicU64::new(0),
            place: OnceLock::new(),
            silenced: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            arrivals: (queues > 1).then(|| Box::new(Mutex::new(Arrivals::new(queues)))),
        }
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    pub(crate) fn left(&self) -> Error {
        Error::PeerLeft { btl: NAME, peer: self.rank }
    }

    /// Recognizes a control message.
    #[cold]
    pub(crate) fn control_kind(&self, message: &ControlMessage) -> Option<ControlKind> {
        let control = self.control.lock();
        let control = control.as_ref()?;
        match message {
            control_message if *control_message == control.greeting => Some(ControlKind::Greeting),
            control_message if *control_message == control.goodbye => Some(ControlKind::Goodbye),
            _ => None,
        }
    }

    /// Builds the error of a link that was never connected.
    pub(crate) fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { btl: NAME, peer: self.rank, reason }
    }

    /// Builds the `wr_id` of work: 7 bits for the queue pair's index, 24 bits for the link (as many as queue pair
    /// numbers have), and 32 bits for the number.
    fn work_id(&self, qp: usize, number: u32) -> u64 {
        (qp as u64) << 56 | u64::from(self.id) << 32 | u64::from(number)
    }
}

/// The parts of [`Link::work_id`]: link, queue pair index and number.
pub(crate) fn of_work_id(id: u64) -> (usize, usize, u32) {
    ((id >> 32) as usize & 0xff_ffff, (id >> 56) as usize, id as u32)
}
