//! Connections by librdmacm: what is done about a peer that is to be connected, or asks.

mod answers;
mod questions;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ahash::AHashMap;
use cableway_base::Rank;
use parking_lot::Mutex;

use super::connector::Connector;
use super::ends::{End, Ends};
use super::introduction::{Introduction, Kind, sign};
use super::listener::Listener;
use super::meeting::{Heard, Meeting};
use crate::NAME;
use crate::card::PUBLISHED;
use crate::link::{Link, Signs, State};
use crate::shared::Shared;
use crate::verbs::{Happening, Id, Reads};

/// Makes connections by librdmacm.
pub(super) struct Maker {
    ends: Ends,
    /// Connections being made.
    pending: AHashMap<Rank, Pending>,
    /// Ids of connections that stand.
    met: AHashMap<Rank, (Arc<Id>, Arc<Link>)>,
    /// Whom an id is about, by its key.
    ranks: AHashMap<usize, Rank>,
    heard: Heard,
    /// Of our last question.
    number: u32,
    /// Our own card, which questions to this process prove that they are to.
    card: [u8; PUBLISHED],
    unasked: Unasked,
    listener: Listener,
}

/// Questions that could not be put, by a thread that was to.
type Unasked = Arc<Mutex<Vec<(Arc<Id>, io::Error)>>>;

/// A connection being made.
struct Pending {
    link: Arc<Link>,
    meeting: Meeting,
    /// When to give up.
    until: Instant,
    /// None while the peer's question is awaited.
    id: Option<Arc<Id>>,
    /// None also where this end waits for a greeting: then the link has it.
    end: Option<End>,
    /// What was said to, or by, the peer in order to connect.
    question: Vec<u8>,
    /// What the peer said of its end.
    theirs: Option<Introduction>,
}

impl Connector for Maker {
    fn ends(&self) -> &Ends {
        &self.ends
    }

    fn ends_mut(&mut self) -> &mut Ends {
        &mut self.ends
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.events.descriptor()
    }

    fn arm(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn drain(&mut self) {}

    fn read(&mut self) -> io::Result<()> {
        let unasked = std::mem::take(&mut *self.unasked.lock());
        for (id, error) in unasked {
            if let Some(rank) = self.ranks.get(&id.key()).copied() {
                self.fail(rank, unaskable(&error));
            }
        }
        while let Some((key, happening)) = self.listener.events.next()? {
            match happening {
                Happening::Asked(asked) if key == self.listener.id.key() => self.asked(asked),
                Happening::Other | Happening::Asked(_) => {}
                happening => {
                    if let Some(rank) = self.ranks.get(&key).copied() {
                        self.happened(rank, happening);
                    }
                }
            }
        }
        Ok(())
    }

    fn want(&mut self, link: Arc<Link>) {
        let rank = link.rank;
        // The peer may have been first.
        if self.pending.contains_key(&rank) || self.met.contains_key(&rank) {
            return;
        }
        if self.ends.shared.finalizing.load(Ordering::Acquire) {
            let error = link.error("the link was closed here");
            return self.ends.lose(&link, error);
        }
        if let Err(error) = self.ask(&link) {
            self.ends.lose(&link, error);
        }
    }

    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let late: Vec<Rank> =
            self.pending.iter().filter(|(_, each)| each.until <= now).map(|(rank, _)| *rank).collect();
        for rank in late {
            let seconds = self.ends.shared.settings.peer_timeout.as_secs_f64();
            self.fail(rank, format!("it does not answer within {seconds} s"));
        }
        self.pending.values().map(|pending| pending.until).min()
    }

    fn bury(&mut self, link: &Arc<Link>) -> bool {
        match self.pending.get(&link.rank) {
            Some(pending) if !pending.meeting.is_answering() => {
                self.fail(link.rank, "its process has ended".to_owned());
                true
            }
            // A greeting, and what came after, may wait to be received.
            _ => false,
        }
    }

    /// What is being made is made, for then the peer is told in good order, unless it does not answer.
    fn close(&mut self) {}
}

impl Maker {
    pub(super) fn new(shared: &Arc<Shared>, listener: Listener) -> Self {
        let (pending, met, ranks) = (AHashMap::new(), AHashMap::new(), AHashMap::new());
        let (heard, unasked, card) = (Heard::default(), Unasked::default(), shared.address.publish());
        Maker { ends: Ends::new(shared), pending, met, ranks, heard, number: 0, card, unasked, listener }
    }

    fn insert(
        &mut self,
        link: &Arc<Link>,
        (meeting, question, theirs): (Meeting, Vec<u8>, Option<Introduction>),
        id: Id,
        end: Option<End>,
    ) {
        self.ranks.insert(id.key(), link.rank);
        let until = Instant::now() + self.ends.shared.settings.peer_timeout;
        let id = Some(Arc::new(id));
        let pending = Pending { link: Arc::clone(link), meeting, until, id, end, question, theirs };
        self.pending.insert(link.rank, pending);
    }

    fn happened(&mut self, rank: Rank, happening: Happening) {
        if let Some((_, link)) = self.met.get(&rank) {
            if matches!(happening, Happening::Disconnected | Happening::Failed { .. }) {
                let link = Arc::clone(link);
                self.ends.shared.mailbox.post(|letters| letters.ended.push(link));
            }
            return;
        }
        let result = match happening {
            Happening::AddressResolved => self.resolved(rank),
            Happening::RouteResolved => self.put_question(rank),
            Happening::Answered { said, reads } => self.answered(rank, &said, Some(reads)),
            Happening::Established { said } => match self.pending.get(&rank) {
                Some(pending) if pending.meeting.is_answering() => {
                    self.establish(rank);
                    Ok(())
                }
                _ => self.answered(rank, &said, None),
            },
            Happening::Refused { said } => return self.refused(rank, &said),
            Happening::Failed { reason } => Err(reason),
            Happening::Disconnected => Err("it closed the connection that was being made".to_owned()),
            Happening::Other | Happening::Asked(_) => Ok(()),
        };
        if let Err(reason) = result {
            self.fail(rank, reason);
        }
    }

    /// The connection stands, as the manager has it.
    fn establish(&mut self, rank: Rank) {
        let Some(pending) = self.pending.remove(&rank) else { return };
        let (Some(id), Some(theirs)) = (pending.id, pending.theirs) else { return };
        self.met.insert(rank, (id, Arc::clone(&pending.link)));
        match pending.end {
            Some(end) => {
                self.ends.establish(&pending.link, end.connected(theirs.queues(), (theirs.cell, theirs.cell_key)))
            }
            // The greeting establishes it.
            None => self.ends.expect_beats(),
        }
    }

    /// A connection being made is not to be.
    fn fail(&mut self, rank: Rank, reason: String) {
        let Some(pending) = self.pending.remove(&rank) else { return };
        let link = pending.link;
        self.withdraw(pending.id, pending.end);
        let shared = &self.ends.shared;
        if pending.meeting.is_answering() {
            // It was the peer's wish, which nobody here needs to hear of. Who wants to send asks anew.
            log::debug!("{NAME}: rank {rank} asked for a connection that was not made: {reason}");
            shared.relent(&link);
        } else if shared.finalizing.load(Ordering::Acquire) {
            shared.relent(&link);
        } else {
            self.ends.lose(&link, link.unreachable(reason));
        }
    }

    /// Ends this end of what was not made.
    fn withdraw(&mut self, id: Option<Arc<Id>>, end: Option<End>) {
        if let Some(end) = &end {
            self.ends.release(end);
        }
        if let Some(id) = &id {
            self.ranks.remove(&id.key());
        }
        if self.ends.shared.port.context.is_iwarp() {
            // Where there is no thread to be had, it is done here.
            let _ = aside(move || drop((end, id)));
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.withdraw(pending.id, pending.end);
        }
    }
}

fn unaskable(error: &io::Error) -> String {
    format!("it cannot be asked for a connection: {error}")
}

/// Has another thread do what over iWARP may wait for a peer's host, be it for minutes: the kernel's connections there are
/// those of TCP.
fn aside(task: impl FnOnce() + Send + 'static) -> io::Result<()> {
    const STACK: usize = 256 << 10;
    let thread = std::thread::Builder::new().name("openib-asks".to_owned()).stack_size(STACK);
    cableway_base::without_signals(|| thread.spawn(task)).map(drop)
}

impl Shared {
    /// What to say of this end.
    fn introduction(&self, kind: Kind, end: &End) -> Introduction {
        let (cell, cell_key) = end.cell.remote();
        let queue = &self.port.queues[0].options;
        let (size, window) = (queue.size as u32, queue.window as u32);
        Introduction { kind, number: 0, window, size, cell, cell_key }
    }

    /// Reads at a time that both ends can serve and make.
    fn reads(&self, theirs: Reads) -> u8 {
        self.port.reads.min(theirs.serves).min(theirs.makes)
    }

    /// Connects the queue pair here to the peer's.
    fn connect(&self, end: &End, id: &Id, reads: Reads) -> Result<(), String> {
        let (patience, priority) = (self.settings.patience(), self.settings.priority);
        let connected = end.pairs[0].pair.connect_by(id, self.reads(reads), &patience, priority);
        connected.map_err(|error| format!("the queue pair cannot be connected: {error}"))
    }

    /// For a connection that the peer asked for, or this end, which then greets.
    fn signs(&self, peer: Rank, greets: bool, words: &[&[u8]]) -> Result<Signs, String> {
        let of = |name: &'static [u8]| sign(&self.identity, peer, !greets, &[&[name], words].concat());
        Ok(Signs { greeting: of(b"greeting")?, goodbye: of(b"goodbye")?, greets, accepted: None })
    }

    /// No connection is to be greeted.
    fn unsign(&self, link: &Link) {
        let accepted = link.signs.lock().take().and_then(|signs| signs.accepted);
        if let Some(connection) = accepted {
            self.unlist(&connection);
        }
    }

    /// The link is as before a connection was thought of.
    fn relent(&self, link: &Link) {
        let mut tx = link.tx.lock();
        if matches!(tx.state, State::Connecting) {
            self.unsign(link);
            let over = tx.closing || self.finalizing.load(Ordering::Acquire);
            tx.state = if over { State::Gone(link.error("the link was closed here"), None) } else { State::Idle };
        }
    }
}
