//! Connections by librdmacm: what is done about a peer that is to be connected, or asks.

mod active;
mod passive;
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
use super::listener::Listener;
use super::private_data::{Kind, PrivateData, control_message};
use super::role::{ConnectRole, SeenRequests};
use crate::NAME;
use crate::card::PUBLISHED;
use crate::link::{ControlMessages, Link, State};
use crate::shared::Shared;
use crate::verbs::{CmEvent, Id, Reads};

/// Makes connections by librdmacm.
pub(super) struct RdmacmConnector {
    ends: Ends,
    /// Connections being made.
    pending: AHashMap<Rank, Pending>,
    /// Ids of connections that stand.
    connected: AHashMap<Rank, (Arc<Id>, Arc<Link>)>,
    /// Whom an id is about, by its key.
    ranks: AHashMap<usize, Rank>,
    seen: SeenRequests,
    /// Of our last question.
    number: u32,
    /// Our own card, which questions to this process prove that they are to.
    card: [u8; PUBLISHED],
    failed_requests: FailedRequests,
    listener: Listener,
}

/// Questions that could not be put, by a thread that was to.
type FailedRequests = Arc<Mutex<Vec<(Arc<Id>, io::Error)>>>;

/// A connection being made.
struct Pending {
    link: Arc<Link>,
    role: ConnectRole,
    /// When to give up.
    until: Instant,
    /// None while the peer's question is awaited.
    id: Option<Arc<Id>>,
    /// None also where this end waits for a greeting: then the link has it.
    end: Option<End>,
    /// What was said to, or by, the peer in order to connect.
    request: Vec<u8>,
    /// What the peer said of its end.
    theirs: Option<PrivateData>,
}

impl Connector for RdmacmConnector {
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
        let failed_requests = std::mem::take(&mut *self.failed_requests.lock());
        for (id, error) in failed_requests {
            if let Some(rank) = self.ranks.get(&id.key()).copied() {
                self.fail(rank, request_error(&error));
            }
        }
        while let Some((key, event)) = self.listener.events.next()? {
            match event {
                CmEvent::ConnectRequest(incoming) if key == self.listener.id.key() => self.handle_request(incoming),
                CmEvent::Other | CmEvent::ConnectRequest(_) => {}
                event => {
                    if let Some(rank) = self.ranks.get(&key).copied() {
                        self.handle_event(rank, event);
                    }
                }
            }
        }
        Ok(())
    }

    fn want(&mut self, link: Arc<Link>) {
        let rank = link.rank;
        // The peer may have been first.
        if self.pending.contains_key(&rank) || self.connected.contains_key(&rank) {
            return;
        }
        if self.ends.shared.finalizing.load(Ordering::Acquire) {
            let error = link.error("the link was closed here");
            return self.ends.lose(&link, error);
        }
        if let Err(error) = self.start(&link) {
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

    fn peer_ended(&mut self, link: &Arc<Link>) -> bool {
        match self.pending.get(&link.rank) {
            Some(pending) if !pending.role.is_passive() => {
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

impl RdmacmConnector {
    pub(super) fn new(shared: &Arc<Shared>, listener: Listener) -> Self {
        let (pending, connected, ranks) = (AHashMap::new(), AHashMap::new(), AHashMap::new());
        let (seen, failed_requests, card) =
            (SeenRequests::default(), FailedRequests::default(), shared.address.publish());
        RdmacmConnector {
            ends: Ends::new(shared),
            pending,
            connected,
            ranks,
            seen,
            number: 0,
            card,
            failed_requests,
            listener,
        }
    }

    fn insert(
        &mut self,
        link: &Arc<Link>,
        (role, request, theirs): (ConnectRole, Vec<u8>, Option<PrivateData>),
        id: Id,
        end: Option<End>,
    ) {
        self.ranks.insert(id.key(), link.rank);
        let until = Instant::now() + self.ends.shared.settings.peer_timeout;
        let id = Some(Arc::new(id));
        let pending = Pending { link: Arc::clone(link), role, until, id, end, request, theirs };
        self.pending.insert(link.rank, pending);
    }

    fn handle_event(&mut self, rank: Rank, event: CmEvent) {
        if let Some((_, link)) = self.connected.get(&rank) {
            if matches!(event, CmEvent::Disconnected | CmEvent::Failed { .. }) {
                let link = Arc::clone(link);
                self.ends.shared.mailbox.post(|notices| notices.ended.push(link));
            }
            return;
        }
        let result = match event {
            CmEvent::AddressResolved => self.resolved(rank),
            CmEvent::RouteResolved => self.send_request(rank),
            CmEvent::ConnectResponse { private_data, reads } => self.answered(rank, &private_data, Some(reads)),
            CmEvent::Established { private_data } => match self.pending.get(&rank) {
                Some(pending) if pending.role.is_passive() => {
                    self.establish(rank);
                    Ok(())
                }
                _ => self.answered(rank, &private_data, None),
            },
            CmEvent::Rejected { private_data } => return self.refused(rank, &private_data),
            CmEvent::Failed { reason } => Err(reason),
            CmEvent::Disconnected => Err("it closed the connection that was being made".to_owned()),
            CmEvent::Other | CmEvent::ConnectRequest(_) => Ok(()),
        };
        if let Err(reason) = result {
            self.fail(rank, reason);
        }
    }

    /// The connection stands, as the manager has it.
    fn establish(&mut self, rank: Rank) {
        let Some(pending) = self.pending.remove(&rank) else { return };
        let (Some(id), Some(theirs)) = (pending.id, pending.theirs) else { return };
        self.connected.insert(rank, (id, Arc::clone(&pending.link)));
        match pending.end {
            Some(end) => {
                self.ends.establish(&pending.link, end.connected(theirs.queues(), (theirs.credits, theirs.credits_key)))
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
        if pending.role.is_passive() {
            // It was the peer's wish, which nobody here needs to hear of. Who wants to send asks anew.
            log::debug!("{NAME}: rank {rank} asked for a connection that was not made: {reason}");
            shared.reset_link(&link);
        } else if shared.finalizing.load(Ordering::Acquire) {
            shared.reset_link(&link);
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

impl Drop for RdmacmConnector {
    fn drop(&mut self) {
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.withdraw(pending.id, pending.end);
        }
    }
}

fn request_error(error: &io::Error) -> String {
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
    fn private_data(&self, kind: Kind, end: &End) -> PrivateData {
        let (credits, credits_key) = end.credits.remote();
        let queue = &self.port.queues[0].options;
        let (size, window) = (queue.size as u32, queue.window as u32);
        PrivateData { kind, number: 0, window, size, credits, credits_key }
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
    fn control_messages(&self, peer: Rank, greets: bool, words: &[&[u8]]) -> Result<ControlMessages, String> {
        let of = |name: &'static [u8]| control_message(&self.identity, peer, !greets, &[&[name], words].concat());
        Ok(ControlMessages { greeting: of(b"greeting")?, goodbye: of(b"goodbye")?, greets, accepted: None })
    }

    /// No connection is to be greeted.
    fn clear_control(&self, link: &Link) {
        let accepted = link.control.lock().take().and_then(|control| control.accepted);
        if let Some(connection) = accepted {
            self.unlist(&connection);
        }
    }

    /// The link is as before a connection was thought of.
    fn reset_link(&self, link: &Link) {
        let mut tx = link.tx.lock();
        if matches!(tx.state, State::Connecting) {
            self.clear_control(link);
            let over = tx.closing || self.finalizing.load(Ordering::Acquire);
            tx.state = if over { State::Gone(link.error("the link was closed here"), None) } else { State::Idle };
        }
    }
}
