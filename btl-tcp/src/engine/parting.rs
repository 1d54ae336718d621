//! The end of links and of peers, by goodbye or by failure.

use std::io;
use std::sync::Arc;

use cableway_btl::{Error, Upcalls};

use super::reader::{End, Reader, Turn};
use super::{Engine, Entry, Source};
use crate::NAME;
use crate::link::{Link, Peer, State};

impl Engine {
    /// Handles a failed write on a link: reads what is left, and then ends the connection.
    pub(super) fn suspect(&mut self, link: &Arc<Link>, upcalls: &dyn Upcalls) {
        let reason = match &link.tx.lock().state {
            State::Broken(reason) => reason.clone(),
            _ => return,
        };
        let Some(key) = self.reader_of(link) else {
            self.failures.push((Arc::clone(&link.peer), link.peer.error(reason)));
            return;
        };
        loop {
            let Some(Entry { source: Source::Reader(reader), .. }) = self.entries.get_mut(key) else { return };
            reader.suspect = Some(reason.clone());
            match reader.turn(&mut self.scratch, &self.shared, upcalls) {
                Turn::More(_) => {}
                Turn::Drained(_) => return self.ended(key, End::Io(io::Error::other(reason)), upcalls),
                Turn::Ended(_, end) => return self.ended(key, end, upcalls),
            }
        }
    }

    fn reader_of(&self, link: &Arc<Link>) -> Option<usize> {
        self.entries.iter().find_map(|(key, entry)| match &entry.source {
            Source::Reader(reader) if Arc::ptr_eq(&reader.link, link) => Some(key),
            _ => None,
        })
    }

    /// Ends a link's connection. If neither end has said goodbye, the peer has failed.
    pub(super) fn ended(&mut self, key: usize, end: End, upcalls: &dyn Upcalls) {
        let Some(Source::Reader(reader)) = self.remove(key) else { return };
        let Reader { link, left, suspect, .. } = *reader;
        let peer = Arc::clone(&link.peer);
        let mut tx = link.tx.lock();
        if (left || tx.closing) && !matches!(end, End::Violation(_)) {
            let finished = tx.outbox.take_finished();
            let lost = tx.outbox.abandon();
            tx.state = State::Left(None);
            if tx.closing {
                peer.links.lock().remove(&link.number);
            }
            drop(tx);
            for token in finished {
                upcalls.completed(token, Ok(()));
            }
            for token in lost {
                upcalls.completed(token, Err(peer.left()));
            }
            if left {
                self.leaving.push(peer);
            }
            return;
        }
        drop(tx);
        let error = match (end, suspect) {
            (End::Violation(reason), _) => {
                log::warn!("{NAME}: peer {} is disconnected: {reason}", peer.rank);
                Error::Malformed { btl: NAME, peer: peer.rank, reason }
            }
            (_, Some(reason)) => peer.error(reason),
            (End::Io(error), None) => peer.error(error.to_string()),
            (End::Eof, None) => peer.error("it closed the connection without a goodbye"),
        };
        self.failures.push((peer, error));
    }

    /// Reports peers that have said goodbye on all their links. Returns their number.
    #[cold]
    pub(super) fn report_leaving(&mut self, upcalls: &dyn Upcalls) -> usize {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.sort_unstable_by_key(|peer| peer.rank);
        leaving.dedup_by_key(|peer| peer.rank);
        let (still, gone): (Vec<_>, Vec<_>) = leaving.into_iter().partition(|peer| {
            self.entries.iter().any(|(_, entry)| match &entry.source {
                Source::Listener(_) | Source::Process(..) => false,
                Source::Pending(pending) => pending.may_carry() && pending.peer() == Some(peer.rank),
                Source::Reader(reader) => reader.link.peer.rank == peer.rank && !reader.left,
            })
        });
        self.leaving = still;
        for peer in &gone {
            self.part(peer, peer.left(), upcalls);
        }
        gone.len()
    }

    /// Releases everything of a peer that failed or left, and reports it.
    pub(super) fn part(&mut self, peer: &Arc<Peer>, error: Error, upcalls: &dyn Upcalls) {
        {
            let mut gone = peer.gone.lock();
            if gone.is_some() {
                return;
            }
            *gone = Some(error.clone());
        }
        let theirs: Vec<usize> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.source.peer() == Some(peer.rank))
            .map(|(key, _)| key)
            .collect();
        for key in theirs {
            self.remove(key);
        }
        self.retries.retain(|(_, attempt)| attempt.link.peer.rank != peer.rank);
        for link in peer.all_links() {
            let mut tx = link.tx.lock();
            let finished = tx.outbox.take_finished();
            let lost = tx.outbox.abandon();
            tx.state = State::Gone(error.clone());
            drop(tx);
            for token in finished {
                upcalls.completed(token, Ok(()));
            }
            for token in lost {
                upcalls.completed(token, Err(error.clone()));
            }
        }
        match error {
            Error::PeerLeft { .. } => upcalls.peer_left(peer.rank),
            error => upcalls.peer_failed(peer.rank, error),
        }
    }
}
