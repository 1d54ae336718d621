//! Connections by librdmacm: what is done about a peer that is to be connected, or asks.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ahash::AHashMap;
use cableway_base::Rank;
use cableway_btl::Error;
use parking_lot::Mutex;

use super::ends::{End, Ends};
use super::introduction::{INTRODUCTION, Introduction, Kind, Part, sign};
use super::listener::Listener;
use super::meeting::{Heard, Meeting, Verdict};
use super::service::{Connector, without_signals};
use crate::NAME;
use crate::card::PUBLISHED;
use crate::link::{Link, Signs, State};
use crate::shared::Shared;
use crate::verbs::{Asked, Happening, Id, Param, Reads};

#[cfg(test)]
mod tests;

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

    fn patience_ms(&self) -> i32 {
        i32::try_from(self.ends.shared.settings.peer_timeout.as_millis()).unwrap_or(i32::MAX)
    }

    /// Begins to ask a peer.
    fn ask(&mut self, link: &Arc<Link>) -> Result<(), Error> {
        let Some(address) = *link.address.lock() else { return Ok(()) };
        let Some(to) = address.listener else { return Err(link.unreachable("it listens nowhere".to_owned())) };
        let end = self.ends.begin(link, Some(&address))?;
        let id = match Id::resolve(&self.listener.events, self.listener.address().ip(), to, self.patience_ms()) {
            Ok(id) => id,
            Err(error) => {
                self.ends.forget(end);
                return Err(link.unreachable(format!("its address {to} leads nowhere: {error}")));
            }
        };
        let decides = self.ends.shared.identity.decides(link.rank);
        let asking = (Meeting::asking(decides), Vec::new(), None);
        self.insert(link, asking, id, Some(end));
        Ok(())
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

    fn resolved(&self, rank: Rank) -> Result<(), String> {
        let id = self.pending.get(&rank).and_then(|pending| pending.id.as_ref());
        let route = id.map_or(Ok(()), |id| id.resolve_route(self.patience_ms()));
        route.map_err(|error| format!("no way leads to its address: {error}"))
    }

    fn put_question(&mut self, rank: Rank) -> Result<(), String> {
        let shared = &self.ends.shared;
        let Some(pending) = self.pending.get_mut(&rank) else { return Ok(()) };
        let (Some(id), Some(end)) = (&pending.id, &pending.end) else { return Ok(()) };
        let Some(address) = *pending.link.address.lock() else { return Ok(()) };
        self.number += 1;
        let introduction = Introduction { number: self.number, ..shared.introduction(Kind::Question, end) };
        let question = introduction.encode(&shared.identity, rank, Part::Question { card: &address.publish() })?;
        pending.question = question.to_vec();
        let (number, reads, retries) = (end.number(), shared.port.reads, shared.settings.retries);
        let ask = move |id: &Id| id.ask(&Param { said: &question, number, reads, retries });
        if !shared.port.context.is_iwarp() {
            return ask(id).map_err(|error| unaskable(&error));
        }
        // The queue pair stays as long as the kernel may mean to connect it.
        let (id, kept, shared) = (Arc::clone(id), end.keep(), Arc::downgrade(shared));
        let unasked = Arc::clone(&self.unasked);
        let put = move || {
            if let Err(error) = ask(&id) {
                unasked.lock().push((id, error));
                if let Some(shared) = shared.upgrade() {
                    shared.door.ring();
                }
            }
            drop(kept);
        };
        aside(put).map_err(|error| unaskable(&error))
    }

    /// The peer agrees to our question. With its reads where the queue pair is to be connected here.
    fn answered(&mut self, rank: Rank, said: &[u8], reads: Option<Reads>) -> Result<(), String> {
        let shared = &self.ends.shared;
        let Some(pending) = self.pending.get_mut(&rank) else { return Ok(()) };
        let (Some(id), Some(end)) = (&pending.id, &pending.end) else { return Ok(()) };
        let part = Part::Reply { question: &pending.question };
        let (from, theirs) = Introduction::decode(&shared.identity, said, part)
            .map_err(|reason| format!("its answer is none: {reason}"))?;
        if from != rank || theirs.kind != Kind::Answer {
            return Err(format!("its answer is of rank {from}, {:?}", theirs.kind));
        }
        if let Some(reads) = reads {
            shared.connect(end, id, reads)?;
            id.establish().map_err(|error| format!("it hears nothing of the connection: {error}"))?;
        } else {
            let words = [&pending.question[..], &said[..INTRODUCTION]];
            *pending.link.signs.lock() = Some(Box::new(Signs { greets: true, ..shared.signs(rank, &words)? }));
        }
        pending.theirs = Some(theirs);
        self.establish(rank);
        Ok(())
    }

    fn refused(&mut self, rank: Rank, said: &[u8]) {
        let Some(pending) = self.pending.get_mut(&rank) else { return };
        let part = Part::Reply { question: &pending.question };
        let reply = Introduction::decode(&self.ends.shared.identity, said, part);
        match reply {
            Ok((from, reply)) if from == rank && reply.kind == Kind::Crossed && pending.meeting.crossed() => {
                let (id, end) = (pending.id.take(), pending.end.take());
                self.withdraw(id, end);
            }
            Ok((from, reply)) if from == rank && reply.kind == Kind::Closed => {
                let Some(pending) = self.pending.remove(&rank) else { return };
                self.withdraw(pending.id, pending.end);
                let link = pending.link;
                self.ends.shared.mailbox.post(|letters| letters.closed.push(link));
            }
            _ => self.fail(rank, "nobody listens at its address any more".to_owned()),
        }
    }

    /// A peer asks, or somebody else does.
    fn asked(&mut self, asked: Asked) {
        let shared = Arc::clone(&self.ends.shared);
        let read = Introduction::decode(&shared.identity, &asked.said, Part::Question { card: &self.card });
        let read = read.and_then(|(rank, theirs)| match self.heard.is_new(rank, theirs.number) {
            true => Ok((rank, theirs)),
            false => Err(format!("it is question {} of rank {rank}, which was heard before", theirs.number)),
        });
        let (rank, theirs) = match read {
            Ok(read) => read,
            Err(reason) => {
                log::debug!("{NAME}: a question is refused: {reason}");
                return asked.id.refuse(&[]);
            }
        };
        let question = asked.said[..INTRODUCTION].to_vec();
        let refuse = |kind| {
            let part = Part::Reply { question: &question };
            match Introduction::refusal(kind).encode(&shared.identity, rank, part) {
                Ok(said) => asked.id.refuse(&said),
                Err(reason) => log::debug!("{NAME}: rank {rank} is not told why: {reason}"),
            }
        };
        let link = shared.link(rank);
        let ours = match self.pending.get_mut(&rank) {
            // What it has withdrawn, or asks a second time.
            _ if self.met.contains_key(&rank) => return refuse(Kind::Crossed),
            Some(pending) => {
                if pending.meeting.asked() == Verdict::Refuse {
                    return refuse(Kind::Crossed);
                }
                self.pending.remove(&rank)
            }
            None if shared.welcomes(&link) => None,
            None => return refuse(Kind::Closed),
        };
        if let Some(end) = ours.as_ref().and_then(|pending| pending.end.as_ref()) {
            self.ends.unlist(end);
        }
        if let Err(reason) = self.agree(&link, asked, question, theirs) {
            log::info!("{NAME}: the question of rank {rank} comes to nothing: {reason}");
            shared.relent(&link);
        }
        // Our own, last: to end what is under way may take until the peer has refused it.
        if let Some(pending) = ours {
            self.withdraw(pending.id, pending.end);
        }
    }

    fn agree(&mut self, link: &Arc<Link>, asked: Asked, question: Vec<u8>, theirs: Introduction) -> Result<(), String> {
        let shared = Arc::clone(&self.ends.shared);
        let address = *link.address.lock();
        let mut end = Some(self.ends.begin(link, address.as_ref()).map_err(|error| error.to_string())?);
        let agreed = self.answer(link, &asked, &question, &theirs, &mut end);
        if let Err(reason) = agreed {
            shared.unsign(link);
            if let Some(end) = end {
                self.ends.forget(end);
            }
            return Err(reason);
        }
        self.insert(link, (Meeting::answering(), question, Some(theirs)), asked.id, end);
        Ok(())
    }

    fn answer(
        &self,
        link: &Link,
        asked: &Asked,
        question: &[u8],
        theirs: &Introduction,
        end: &mut Option<End>,
    ) -> Result<(), String> {
        let shared = &self.ends.shared;
        let Some(ours) = end.as_ref() else { return Ok(()) };
        let answer = shared.introduction(Kind::Answer, ours);
        let answer = answer.encode(&shared.identity, link.rank, Part::Reply { question })?;
        shared.connect(ours, &asked.id, asked.reads)?;
        let reads = shared.reads(asked.reads);
        let number = ours.number();
        if shared.port.context.is_iwarp() {
            // Before the greeting can come.
            let mut signs = shared.signs(link.rank, &[question, &answer])?;
            signs.accepted = end.take().map(|end| end.connected(theirs.queues(), (theirs.cell, theirs.cell_key)));
            *link.signs.lock() = Some(Box::new(signs));
        }
        let param = Param { said: &answer, number, reads, retries: shared.settings.retries };
        asked.id.accept(&param).map_err(|error| format!("it cannot be answered: {error}"))
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

/// Has another thread do what over iWARP may wait for a peer's host, be it for minutes: the kernel's connections there are
/// those of TCP.
fn aside(task: impl FnOnce() + Send + 'static) -> io::Result<()> {
    const STACK: usize = 256 << 10;
    let thread = std::thread::Builder::new().name("openib-asks".to_owned()).stack_size(STACK);
    without_signals(|| thread.spawn(task)).map(drop)
}

fn unaskable(error: &io::Error) -> String {
    format!("it cannot be asked for a connection: {error}")
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
        let connected = end.pairs[0].pair.connect_by(id, self.reads(reads), &self.settings.patience());
        connected.map_err(|error| format!("the queue pair cannot be connected: {error}"))
    }

    fn signs(&self, peer: Rank, words: &[&[u8]]) -> Result<Signs, String> {
        let of = |name: &'static [u8]| sign(&self.identity, peer, &[&[name], words].concat());
        Ok(Signs { greeting: of(b"greeting")?, goodbye: of(b"goodbye")?, greets: false, accepted: None })
    }

    /// Whether a peer's question fits the link to it, which is being connected from here on.
    fn welcomes(&self, link: &Link) -> bool {
        let mut tx = link.tx.lock();
        if matches!(tx.state, State::Idle) && !tx.closing && !self.finalizing.load(Ordering::Acquire) {
            tx.state = State::Connecting;
        }
        matches!(tx.state, State::Connecting)
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
