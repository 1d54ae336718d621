//! Watches the processes of peers on this node. The system reports their end at once, even while another process, such
//! as a forked child, keeps a peer's sockets open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cableway_btl::process::Found;
use rustix::event::epoll::EventFlags;

use super::pending::Side;
use super::{Engine, Entry, Source};
use crate::link::Peer;
use crate::{NAME, sys};

/// How long data of an ended process may still arrive.
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

    /// Fails peers whose processes have ended once all that they had sent was read. A connection that closes with its
    /// process is found closed before that.
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

    /// Returns its established links.
    fn sockets(&self, peer: &Arc<Peer>) -> impl Iterator<Item = &sys::Socket> {
        self.entries.iter().filter_map(move |(_, entry)| match &entry.source {
            Source::Reader(reader) if Arc::ptr_eq(&reader.link.peer, peer) => Some(&*reader.socket),
            _ => None,
        })
    }

    /// Whether this process tries to connect to it.
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

/// Whether nothing more is to be expected from the other end of a connection, if its process has ended.
fn is_quiet(socket: &sys::Socket) -> bool {
    let unread = sys::unread_bytes(socket).unwrap_or(0);
    unread == 0 && sys::liveness(socket).is_ok_and(|liveness| liveness.since_data >= QUIET)
}
