//! A peer, the connection to it, and what is under way there.

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
use crate::work::{Lane, Works};

mod closing;
mod sending;

#[cfg(test)]
mod tests;

/// Longest message that is copied in order to be sent at once.
pub(crate) const COPIED: usize = 4 << 10;

/// A process of the job that we talk, or mean to talk, to.
pub(crate) struct Link {
    pub(crate) rank: Rank,
    /// Its place in the directory.
    pub(crate) id: u32,
    /// Where the peer is; none until this process means to send, or the peer has.
    pub(crate) address: Mutex<Option<Address>>,
    pub(crate) tx: Mutex<Tx>,
    /// Messages that stand for words, where the network has none. Locked after `tx`.
    pub(crate) control: Mutex<Option<Box<ControlMessages>>>,
    /// Messages of the peer that were handed up here.
    pub(crate) consumed: AtomicU64,
    /// How many of them the peer was told of.
    pub(crate) told: AtomicU64,
    /// Which of the networks of both processes it goes by; there once the peer's card was seen.
    pub(crate) place: OnceLock<u8>,
    /// Nothing is taken from it any more.
    pub(crate) silenced: AtomicBool,
    /// Whether `peer_failed` or `peer_left` was, or is about to be, called.
    pub(crate) reported: AtomicBool,
    /// Where messages come by several queue pairs; for progress alone.
    pub(crate) arrivals: Option<Box<Mutex<Arrivals>>>,
}

/// A link's sending side.
pub(crate) struct Tx {
    pub(crate) state: State,
    /// Of each queue pair.
    pub(crate) works: SmallVec<[Works; 1]>,
    /// Messages sent that the peer may not have consumed.
    kept: Kept,
    /// Where there are several queue pairs: that of each message not known to be consumed.
    lanes: VecDeque<u8>,
    /// What a broken connection leaves was told.
    settled: bool,
    /// There was to be a connection, and none was made.
    pub(crate) unmade: bool,
    /// The device refused the work that was to report the end of all before it.
    pub(crate) mute: bool,
    /// Our goodbye has been sent, or will never be: nothing more may follow.
    pub(crate) closing: bool,
}

/// A queue pair stays until the transport goes, also where it is of no use any more: receive buffers that the device
/// gave to it would be lost with it.
pub(crate) enum State {
    /// Nobody has sent yet.
    Idle,
    /// The service makes a connection.
    Connecting,
    Connected(Connection),
    /// The peer said goodbye; what is under way comes back.
    Left {
        kept: Option<Connection>,
    },
    /// It broke; what is under way comes back.
    Broken(Connection, Error),
    /// Nothing is under way any more.
    Gone(Error, Option<Connection>),
}

/// Connected pairs of queue pairs, seen from this end.
pub(crate) struct Connection {
    /// One for each receive queue of the peer, whose buffers grow from one to the next.
    pub(crate) lanes: SmallVec<[Lane; 1]>,
    /// What the peer has consumed.
    pub(crate) credits: CreditCounter,
    /// Where the peer wants to be told what we have consumed.
    pub(crate) their_credits: (u64, u32),
}

impl Connection {
    /// The queue pair for messages of `len` bytes; the last for those that none is for.
    #[inline]
    pub(crate) fn lane(&self, len: usize) -> usize {
        let last = self.lanes.len() - 1;
        self.lanes[..last].iter().position(|lane| lane.size >= len).unwrap_or(last)
    }
}

/// A message that means something to this transport alone, and that nobody but the two ends of a connection knows.
pub(crate) type ControlMessage = [u8; 32];

/// The signs of a connection over iWARP, which has no words beside messages.
pub(crate) struct ControlMessages {
    /// Sent first by the end that asked for the connection: before that, the other must send nothing (RFC 5044).
    pub(crate) greeting: ControlMessage,
    /// Sent last.
    pub(crate) goodbye: ControlMessage,
    /// This end asked.
    pub(crate) greets: bool,
    /// Or was asked, and has not been greeted yet.
    pub(crate) accepted: Option<Connection>,
}

/// What a message says to this transport itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    Greeting,
    Goodbye,
}

impl Link {
    /// By so many queue pairs.
    pub(crate) fn new(rank: Rank, id: u32, queues: usize) -> Self {
        let tx = Tx {
            state: State::Idle,
            works: std::iter::repeat_with(Works::default).take(queues).collect(),
            kept: Kept::default(),
            lanes: VecDeque::new(),
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

    /// The word that a message is a sign for.
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

    /// It was never connected.
    pub(crate) fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { btl: NAME, peer: self.rank, reason }
    }

    /// The id of work, by which its completion is found: 7 bits, 24 bits, as many as there can be queue pairs, and 32.
    fn work_id(&self, lane: usize, number: u32) -> u64 {
        (lane as u64) << 56 | u64::from(self.id) << 32 | u64::from(number)
    }
}

/// The parts of [`Link::work_id`]: link, lane and number.
pub(crate) fn of_work_id(id: u64) -> (usize, usize, u32) {
    ((id >> 32) as usize & 0xff_ffff, (id >> 56) as usize, id as u32)
}
