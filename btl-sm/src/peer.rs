//! The state of a peer, shared by its endpoint, which sends, and progress, which receives.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, OnceLock};

use cableway_base::Rank;
use cableway_btl::Error;
use parking_lot::Mutex;

use crate::NAME;
use crate::card::SocketName;
use crate::device::DeviceMapping;
use crate::pool::Reference;
use crate::segment::{Class, Layout, Memory};
use crate::single_copy::Remote;

/// The state of the connection to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Status {
    /// Not requested.
    Idle = 0,
    /// In progress. Messages of the peer may already arrive.
    Connecting = 1,
    /// Established in both directions.
    Open = 2,
    /// The peer has said goodbye. Its messages still arrive, but nothing can be sent.
    Departed = 3,
    /// Dead, disconnected or unreachable.
    Failed = 4,
}

/// A peer.
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    status: AtomicU8,
    error: Mutex<Option<Error>>,
    /// Set before the status becomes `Open`, and never reset.
    pub(crate) link: OnceLock<Arc<Link>>,
    /// The peer's listening socket, once its card is known.
    pub(crate) socket: OnceLock<SocketName>,
    /// True if the endpoint exists. There is at most one.
    pub(crate) has_endpoint: AtomicBool,
    /// True if the endpoint was dropped. Then failures are not reported.
    pub(crate) closed: AtomicBool,
    /// True if one of the two sides cannot copy from the other.
    pub(crate) single_copy_refused: AtomicBool,
    pub(crate) device: DeviceState,
}

impl Peer {
    pub(crate) fn new(rank: Rank) -> Self {
        Peer {
            rank,
            status: AtomicU8::new(Status::Idle as u8),
            error: Mutex::new(None),
            link: OnceLock::new(),
            socket: OnceLock::new(),
            has_endpoint: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            single_copy_refused: AtomicBool::new(false),
            device: DeviceState::default(),
        }
    }

    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.status.load(Acquire) == Status::Open as u8
    }

    pub(crate) fn status(&self) -> Status {
        match self.status.load(Acquire) {
            0 => Status::Idle,
            1 => Status::Connecting,
            2 => Status::Open,
            3 => Status::Departed,
            _ => Status::Failed,
        }
    }

    /// Advances the status to `to`, never back. Returns whether this call did it.
    pub(crate) fn advance(&self, to: Status) -> bool {
        self.status.fetch_max(to as u8, AcqRel) < to as u8
    }

    /// Sets the status to failed with `error`, unless it has failed already. Returns whether this call did it.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let mut slot = self.error.lock();
        if self.status() == Status::Failed {
            return false;
        }
        *slot = Some(error);
        self.advance(Status::Failed)
    }

    /// Returns the reason why nothing can be sent.
    pub(crate) fn error(&self) -> Error {
        self.error.lock().clone().unwrap_or(Error::PeerLeft { btl: NAME, peer: self.rank })
    }

    /// Records the result of one side's attempt to copy from the other.
    pub(crate) fn single_copy_checked(&self, works: bool) {
        if !works {
            self.single_copy_refused.store(true, Relaxed);
        }
    }

    /// Returns the error of a peer that is gone.
    pub(crate) fn gone(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    /// Returns the error of a peer that was never connected.
    pub(crate) fn unreachable(&self, reason: impl Into<String>) -> Error {
        Error::Unreachable { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    /// Returns the error of a peer that violated the protocol.
    pub(crate) fn malformed(&self, reason: impl Into<String>) -> Error {
        Error::Malformed { btl: NAME, peer: self.rank, reason: reason.into() }
    }
}

/// A peer's mapped memory.
pub(crate) struct Link {
    pub(crate) memory: Arc<Memory>,
    pub(crate) layout: Layout,
    /// The own number as a producer in the peer's FIFO.
    pub(crate) our_index: u16,
    /// The peer's number as a producer in the own FIFO.
    pub(crate) index: u16,
    /// For single copy; `None` if the namespaces or a parameter forbid it.
    pub(crate) remote: Option<Remote>,
    /// The peer's device segment, after it was sent.
    pub(crate) device: OnceLock<DeviceMapping>,
}

impl Link {
    /// Returns the memory and class of the fragment that a reference of this peer names, if it exists.
    #[inline]
    pub(crate) fn resolve(&self, reference: Reference) -> Option<(&Arc<Memory>, &Class)> {
        let (memory, class) = match reference.class() {
            0 => (&self.memory, &self.layout.eager),
            1 => (&self.memory, &self.layout.large),
            class => {
                let device = self.device.get()?;
                (&device.memory, device.classes.get(usize::from(class) - 2)?)
            }
        };
        (reference.id() < class.count).then_some((memory, class))
    }
}

/// Returns whether the peer has the own device segment.
#[derive(Default)]
pub(crate) struct DeviceState(AtomicU8);

/// See [`DeviceState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceStatus {
    /// Not requested.
    Unasked,
    /// The peer was requested to map it.
    Asked,
    /// The peer can read own device fragments.
    Ready,
    /// The peer cannot read them.
    Refused,
}

impl DeviceState {
    pub(crate) fn get(&self) -> DeviceStatus {
        match self.0.load(Acquire) {
            0 => DeviceStatus::Unasked,
            1 => DeviceStatus::Asked,
            2 => DeviceStatus::Ready,
            _ => DeviceStatus::Refused,
        }
    }

    pub(crate) fn ask(&self) {
        self.0.store(1, Release);
    }

    pub(crate) fn answered(&self, taken: bool) {
        self.0.store(if taken { 2 } else { 3 }, Release);
    }
}
