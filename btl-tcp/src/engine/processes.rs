//! Watches the processes of peers on this node. The system reports their end at once, even if another process, such as
//! a forked child, keeps a peer's sockets open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cableway_btl::process::Found;
use rustix::event::epoll::EventFlags;

use super::pending::Side;
use super::{Engine, Entry, Source};
use crate::link::Peer;
use crate::{NAME, sys};

/// How long data of an ended process may take to arrive.
const QUIET: Duration = Duration::from_millis(100);

impl Engine {
    /// Watches a peer's process, if it is on this node. Returns whether it has ended already.
    pub(super) fn watch_process(&mut self, peer: &Arc<Peer>) -> bool {
        let Some(process) = peer.process.get() else { return false };
        if peer.watched.load(Ordering::Relaxed) {
            return false;
        }
        match process.find(&self.shared.card.process) {
            Found::Elsewhere => false,
            Found::Ended => true,
            Found::Alive(watch) => {
                match self.insert(Source::Process(watch, Arc::clone(peer)), EventFlags::IN) {
                    Ok(_) => peer.watched.store(true, Ordering::Relaxed),
                    Err(error) => log::debug!("{NAME}: the process of peer {} is not watched: {error}", peer.rank),
                }
                false
            }
        }
    }

    /// Handles a peer's card. The peer may be connected already.
    pub(super) fn met(&mut self, peer: &Arc<Peer>) {
        if self.sockets(peer).next().is_some() {
            self.watch_process(peer);
        }
    }

    pub(super) fn process_ended(&mut self, key: usize) {
        if let Some(Source::Process(_, peer)) = self.remove(key) {
            self.ended.push(peer);
        }
    }

    /// Reports peers whose processes have ended as failed, after reading all their data. If a connection closes with
    /// its process, the close is detected earlier.
    pub(super) fn look_after_ended(&mut self) {
        for peer in std::mem::take(&mut self.ended) {
            // Another transport may serve this peer; this one then reports nothing about it.
            let used = peer.gone().is_none() && (self.sockets(&peer).next().is_some() || self.is_called(&peer));
            if used && self.sockets(&peer).all(is_quiet) {
                let error = peer.unreachable("its process has ended".to_owned());
                self.failures.push((peer, error));
            } else if used {
                self.ended.push(peer);
            }
        }
    }

    /// Returns the peer's established links.
    fn sockets(&self, peer: &Arc<Peer>) -> impl Iterator<Item = &sys::Socket> {
        self.entries.iter().filter_map(move |(_, entry)| match &entry.source {
            Source::Reader(reader) if Arc::ptr_eq(&reader.link.peer, peer) => Some(&*reader.socket),
            _ => None,
        })
    }

    /// Returns whether this process tries to connect to the peer.
    fn is_called(&self, peer: &Arc<Peer>) -> bool {
        let calls = |entry: &Entry| match &entry.source {
            Source::Pending(pending) => {
                matches!(&pending.side, Side::Client(attempt) if Arc::ptr_eq(&attempt.link.peer, peer))
            }
            _ => false,
        };
        self.entries.iter().any(|(_, entry)| calls(entry))
            || self.retries.iter().any(|(_, attempt)| Arc::ptr_eq(&attempt.link.peer, peer))
    }
}

/// Returns whether a connection has no more data, if the peer's process has ended.
fn is_quiet(socket: &sys::Socket) -> bool {
    let unread = sys::unread_bytes(socket).unwrap_or(0);
    unread == 0 && sys::liveness(socket).is_ok_and(|liveness| liveness.since_data >= QUIET)
}
