//! Peers, their links, and the sending side of a link.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::sys::Socket;
use cableway_base::Rank;
use cableway_btl::process::Process;
use cableway_btl::{Error, Token};
use parking_lot::Mutex;

use crate::NAME;
use crate::fragments::Fragments;
use crate::outbox::Outbox;
use crate::pairing::Route;
use crate::pool::Pool;
use crate::settings::Settings;
use crate::wire;

/// The number of bytes in queued copies of messages on one link. Beyond it, sends report a busy link.
const COPIED_LIMIT: usize = 32 << 10;
/// The number of queued messages in place and puts on one link.
pub(crate) const WAITING_LIMIT: usize = 64;

/// A peer process.
pub(crate) struct Peer {
    pub(crate) rank: Rank,
    pub(crate) links: Mutex<BTreeMap<usize, Arc<Link>>>,
    /// The number of links that both ends agreed on. With several links a message may overtake a `put`'s data on
    /// another one.
    pub(crate) agreed_links: AtomicUsize,
    /// Why the peer is unreachable.
    pub(crate) gone: Mutex<Option<Error>>,
    /// The peer's process, once its card is known.
    pub(crate) process: OnceLock<Process>,
    /// True if the end of that process will be detected.
    pub(crate) watched: AtomicBool,
}

/// One connection to a peer, established or not.
pub(crate) struct Link {
    pub(crate) peer: Arc<Peer>,
    pub(crate) number: usize,
    /// Routes, the best first. Empty until this process wants to send.
    pub(crate) routes: Mutex<Vec<Route>>,
    pub(crate) fragments: Arc<Fragments>,
    pub(crate) tx: Mutex<Tx>,
}

/// A link's sending side.
pub(crate) struct Tx {
    pub(crate) state: State,
    pub(crate) outbox: Outbox,
    /// The socket was full at the last write, so later messages wait.
    pub(crate) full: bool,
    /// The engine knows that data is queued.
    pub(crate) listed: bool,
    /// The own goodbye is queued or sent. Nothing may follow it.
    pub(crate) closing: bool,
    /// The own goodbye is sent, and the sending direction is shut down.
    pub(crate) shut: bool,
}

pub(crate) enum State {
    /// Neither side has sent yet.
    Idle,
    /// The engine is connecting.
    Connecting,
    Connected(Arc<Socket>),
    /// Writing failed. The engine first reads what the peer sent, then decides between failure and goodbye.
    Broken(String),
    /// The peer closed this link. Queued data is still offered to the socket.
    Left(Option<Arc<Socket>>),
    /// No longer usable.
    Gone(Error),
}

/// A queue of requests from endpoints to the engine, behind one lock that only slow paths take.
#[derive(Default)]
pub(crate) struct RequestQueue {
    requests: Mutex<Requests>,
    any: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Requests {
    /// Links to connect.
    pub(crate) connect: Vec<Arc<Link>>,
    /// Peers with new cards.
    pub(crate) met: Vec<Arc<Peer>>,
    /// Links with queued data.
    pub(crate) blocked: Vec<Arc<Link>>,
    /// Links on which writing failed.
    pub(crate) broken: Vec<Arc<Link>>,
    /// Completed operations.
    pub(crate) finished: Vec<(Token, Result<(), Error>)>,
}

impl RequestQueue {
    pub(crate) fn post(&self, write: impl FnOnce(&mut Requests)) {
        write(&mut self.requests.lock());
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Exchanges all requests, if there are any, for `empty` ones, whose allocations are reused.
    #[inline]
    pub(crate) fn collect(&self, empty: &mut Requests) -> bool {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Acquire) {
            return false;
        }
        std::mem::swap(&mut *self.requests.lock(), empty);
        true
    }
}

impl Peer {
    pub(crate) fn new(rank: Rank) -> Self {
        Peer {
            rank,
            links: Mutex::default(),
            agreed_links: AtomicUsize::new(0),
            gone: Mutex::default(),
            process: OnceLock::new(),
            watched: AtomicBool::new(false),
        }
    }

    /// Returns the link of this number. Creates it if necessary.
    pub(crate) fn link(self: &Arc<Self>, number: usize, pool: &Arc<Pool>, settings: &Settings) -> Arc<Link> {
        let mut links = self.links.lock();
        let link = links.entry(number).or_insert_with(|| {
            // A failure may be passing through the links. Set the error first: either the failure finds this link, or
            // this finds the failure.
            let state = self.gone().map_or(State::Idle, State::Gone);
            Arc::new(Link {
                peer: Arc::clone(self),
                number,
                routes: Mutex::default(),
                fragments: Fragments::new(Arc::clone(pool), settings),
                tx: Mutex::new(Tx {
                    state,
                    outbox: Outbox::default(),
                    full: false,
                    listed: false,
                    closing: false,
                    shut: false,
                }),
            })
        });
        Arc::clone(link)
    }

    pub(crate) fn gone(&self) -> Option<Error> {
        self.gone.lock().clone()
    }

    /// Returns all links, for callers that must not hold the table's lock.
    pub(crate) fn all_links(&self) -> Vec<Arc<Link>> {
        self.links.lock().values().map(Arc::clone).collect()
    }

    /// Returns whether a `put` completes only with the peer's confirmation. With several links a later message may
    /// overtake the data on another link. With one link it follows the data, and the put completes when the kernel has
    /// accepted it.
    pub(crate) fn confirms_puts(&self) -> bool {
        self.agreed_links.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> Error {
        Error::PeerGone { btl: NAME, peer: self.rank, reason: reason.into() }
    }

    /// Builds the error for a peer if a link cannot connect.
    pub(crate) fn unreachable(&self, reason: String) -> Error {
        if self.is_connected() {
            return self.error(reason);
        }
        Error::Unreachable { btl: NAME, peer: self.rank, reason }
    }

    pub(crate) fn left(&self) -> Error {
        Error::PeerLeft { btl: NAME, peer: self.rank }
    }

    /// Returns whether at least one link is connected and the peer has not said goodbye on it.
    pub(crate) fn is_connected(&self) -> bool {
        self.all_links().iter().any(|link| matches!(link.tx.lock().state, State::Connected(_)))
    }
}

impl Tx {
    /// Returns whether another copied message may be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.copied() < COPIED_LIMIT && self.outbox.waiting() < WAITING_LIMIT
    }

    /// Writes queued data to the socket. `link` is this link.
    pub(crate) fn flush(&mut self, link: &Arc<Link>, request_queue: &RequestQueue) {
        let socket = match &self.state {
            State::Connected(socket) | State::Left(Some(socket)) => Arc::clone(socket),
            _ => return,
        };
        if let Err(error) = self.outbox.write(&socket) {
            self.broke(link, &error, request_queue);
            return;
        }
        self.full = !self.outbox.is_empty();
        if self.full {
            self.list(link, request_queue);
        } else if self.closing && !self.shut {
            self.shut = true;
            // If the connection is broken, its reader detects that.
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Tells the engine that data is queued.
    pub(crate) fn list(&mut self, link: &Arc<Link>, request_queue: &RequestQueue) {
        if !self.listed {
            self.listed = true;
            request_queue.post(|requests| requests.blocked.push(Arc::clone(link)));
        }
    }

    /// Reports a failed write to the engine.
    pub(crate) fn broke(&mut self, link: &Arc<Link>, error: &std::io::Error, request_queue: &RequestQueue) {
        self.state = State::Broken(error.to_string());
        request_queue.post(|requests| requests.broken.push(Arc::clone(link)));
    }

    /// Passes finished tokens to the engine.
    pub(crate) fn post_finished(&mut self, request_queue: &RequestQueue) {
        let finished = self.outbox.take_finished();
        if !finished.is_empty() {
            request_queue.post(|requests| requests.finished.extend(finished.into_iter().map(|token| (token, Ok(())))));
        }
    }

    /// Says goodbye after all queued data.
    pub(crate) fn close(&mut self, link: &Arc<Link>, request_queue: &RequestQueue) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        match &self.state {
            State::Connected(_) | State::Left(_) => {
                self.outbox.push_copy(&[&wire::goodbye()], 0);
                self.flush(link, request_queue);
            }
            State::Idle | State::Connecting => self.state = State::Gone(link.peer.error("the link was closed here")),
            State::Broken(_) | State::Gone(_) => {}
        }
    }
}
