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

/// How far the connection to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Status {
    /// Not requested.
    Idle = 0,
    /// Under way; what the peer sends can arrive already.
    Connecting = 1,
    /// Both ways.
    Open = 2,
    /// The peer has ended in good order: what it sent still arrives, nothing more can be sent.
    Departed = 3,
    /// Dead, disconnected or unreachable.
    Failed = 4,
}

/// A peer.
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    status: AtomicU8,
    error: Mutex<Option<Error>>,
    /// Set before the status becomes `Open`, and never unset.
    pub(crate) link: OnceLock<Arc<Link>>,
    /// Where it listens, once its card was seen.
    pub(crate) socket: OnceLock<SocketName>,
    /// Whether an endpoint has been made; there is one at most.
    pub(crate) has_endpoint: AtomicBool,
    /// The endpoint was dropped: failures are not reported.
    pub(crate) closed: AtomicBool,
    /// One of the two sides found that it cannot copy from the other.
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

    /// Moves on to `to`; never back. Whether this call did it.
    pub(crate) fn advance(&self, to: Status) -> bool {
        self.status.fetch_max(to as u8, AcqRel) < to as u8
    }

    /// Fails for `error`, unless it has failed already. Whether this call did it.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let mut slot = self.error.lock();
        if self.status() == Status::Failed {
            return false;
        }
        *slot = Some(error);
        self.advance(Status::Failed)
    }

    /// Returns why nothing can be sent.
    pub(crate) fn error(&self) -> Error {
        self.error.lock().clone().unwrap_or(Error::PeerLeft { btl: NAME, peer: self.rank })
    }

    /// The result of one side's attempt to copy from the other.
    pub(crate) fn single_copy_checked(&self, works: bool) {
        if !works {
            self.single_copy_refused.store(true, Relaxed);
        }
    }

    /// That the peer is gone, and why.
    pub(crate) fn gone(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    /// That the peer was never connected, and why.
    pub(crate) fn unreachable(&self, reason: impl Into<String>) -> Error {
        Error::Unreachable { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    /// That the peer broke the rules, and which.
    pub(crate) fn malformed(&self, reason: impl Into<String>) -> Error {
        Error::Malformed { btl: NAME, peer: self.rank, reason: reason.into() }
    }
}

/// A peer's memory, mapped here.
pub(crate) struct Link {
    pub(crate) memory: Arc<Memory>,
    pub(crate) layout: Layout,
    /// The number by which records in the peer's FIFO are known to be ours.
    pub(crate) our_index: u16,
    /// The number by which records in our FIFO are known to be the peer's.
    pub(crate) index: u16,
    /// For single copy; none where the namespaces or a parameter forbid it.
    pub(crate) remote: Option<Remote>,
    /// The peer's device segment, once it was sent.
    pub(crate) device: OnceLock<DeviceMapping>,
}

impl Link {
    /// The memory and class that a reference from this peer names, if there is such a fragment.
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

/// Whether the peer has our device segment.
#[derive(Default)]
pub(crate) struct DeviceState(AtomicU8);

/// See [`DeviceState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceStatus {
    /// Not requested.
    Unasked,
    /// The peer was asked to map it.
    Asked,
    /// It can read our device fragments.
    Ready,
    /// It cannot.
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
