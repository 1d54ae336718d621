//! Connection setup by librdmacm.

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

use super::common::{ConnectorCommon, LocalEnd};
use super::connector::Connector;
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
    common: ConnectorCommon,
    /// Connections being made.
    pending: AHashMap<Rank, Pending>,
    /// Ids of established connections.
    connected: AHashMap<Rank, (Arc<Id>, Arc<Link>)>,
    /// The peer of each id, by the id's key.
    ranks: AHashMap<usize, Rank>,
    seen: SeenRequests,
    /// The number of the last request that this process sent.
    number: u32,
    /// The own card. A request's proof covers it, which binds the request to this process.
    card: [u8; PUBLISHED],
    failed_requests: FailedRequests,
    listener: Listener,
}

/// Requests that a helper thread could not send.
type FailedRequests = Arc<Mutex<Vec<(Arc<Id>, io::Error)>>>;

/// A connection being made.
struct Pending {
    link: Arc<Link>,
    role: ConnectRole,
    /// When to give up.
    until: Instant,
    /// None while the peer's request is awaited.
    id: Option<Arc<Id>>,
    /// None also while this end waits for a greeting: the link holds the end then.
    end: Option<LocalEnd>,
    /// The bytes of the connection request, sent or received.
    request: Vec<u8>,
    /// The peer's description of its end.
    theirs: Option<PrivateData>,
}

impl Connector for RdmacmConnector {
    fn common(&self) -> &ConnectorCommon {
        &self.common
    }

    fn common_mut(&mut self) -> &mut ConnectorCommon {
        &mut self.common
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
        // The peer may have connected first.
        if self.pending.contains_key(&rank) || self.connected.contains_key(&rank) {
            return;
        }
        if self.common.shared.finalizing.load(Ordering::Acquire) {
            let error = link.error("the link was closed here");
            return self.common.lose(&link, error);
        }
        if let Err(error) = self.start(&link) {
            self.common.lose(&link, error);
        }
    }

    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let late: Vec<Rank> =
            self.pending.iter().filter(|(_, each)| each.until <= now).map(|(rank, _)| *rank).collect();
        for rank in late {
            let seconds = self.common.shared.settings.peer_timeout.as_secs_f64();
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
            // A greeting and further messages may still be unread.
            _ => false,
        }
    }

    /// Lets pending connections complete, so that the peer receives a goodbye.
    fn close(&mut self) {}
}

impl RdmacmConnector {
    pub(super) fn new(shared: &Arc<Shared>, listener: Listener) -> Self {
        let (pending, connected, ranks) = (AHashMap::new(), AHashMap::new(), AHashMap::new());
        let (seen, failed_requests, card) =
            (SeenRequests::default(), FailedRequests::default(), shared.address.publish());
        RdmacmConnector {
            common: ConnectorCommon::new(shared),
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
        end: Option<LocalEnd>,
    ) {
        self.ranks.insert(id.key(), link.rank);
        let until = Instant::now() + self.common.shared.settings.peer_timeout;
        let id = Some(Arc::new(id));
        let pending = Pending { link: Arc::clone(link), role, until, id, end, request, theirs };
        self.pending.insert(link.rank, pending);
    }

    fn handle_event(&mut self, rank: Rank, event: CmEvent) {
        if let Some((_, link)) = self.connected.get(&rank) {
            if matches!(event, CmEvent::Disconnected | CmEvent::Failed { .. }) {
                let link = Arc::clone(link);
                self.common.shared.notices.post(|notices| notices.ended.push(link));
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

    /// Establishes a connection that the manager reports as established.
    fn establish(&mut self, rank: Rank) {
        let Some(pending) = self.pending.remove(&rank) else { return };
        let (Some(id), Some(theirs)) = (pending.id, pending.theirs) else { return };
        self.connected.insert(rank, (id, Arc::clone(&pending.link)));
        match pending.end {
            Some(end) => self
                .common
                .establish(&pending.link, end.connected(theirs.queues(), (theirs.credits, theirs.credits_key))),
            // The greeting establishes the connection.
            None => self.common.schedule_heartbeats(),
        }
    }

    /// Fails a pending connection.
    fn fail(&mut self, rank: Rank, reason: String) {
        let Some(pending) = self.pending.remove(&rank) else { return };
        let link = pending.link;
        self.withdraw(pending.id, pending.end);
        let shared = &self.common.shared;
        if pending.role.is_passive() {
            // The peer wanted this connection; nothing here waits for it. A later send starts a new request.
            log::debug!("{NAME}: rank {rank} asked for a connection that was not made: {reason}");
            shared.reset_link(&link);
        } else if shared.finalizing.load(Ordering::Acquire) {
            shared.reset_link(&link);
        } else {
            self.common.lose(&link, link.unreachable(reason));
        }
    }

    /// Releases this end of a connection that was not established.
    fn withdraw(&mut self, id: Option<Arc<Id>>, end: Option<LocalEnd>) {
        if let Some(end) = &end {
            self.common.release(end);
        }
        if let Some(id) = &id {
            self.ranks.remove(&id.key());
        }
        if self.common.shared.port.context.is_iwarp() {
            // Without a thread the closure is dropped here.
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
    format!("cannot send a connection request: {error}")
}

/// Runs `task` on another thread. Over iWARP the call may block for minutes on the peer's host, since the kernel's
/// connections are TCP.
fn aside(task: impl FnOnce() + Send + 'static) -> io::Result<()> {
    const STACK: usize = 256 << 10;
    let thread = std::thread::Builder::new().name("openib-asks".to_owned()).stack_size(STACK);
    cableway_base::without_signals(|| thread.spawn(task)).map(drop)
}

impl Shared {
    /// Describes this end.
    fn private_data(&self, kind: Kind, end: &LocalEnd) -> PrivateData {
        let (credits, credits_key) = end.credits.remote();
        let queue = &self.port.queues[0].options;
        let (size, window) = (queue.size as u32, queue.window as u32);
        PrivateData { kind, number: 0, window, size, credits, credits_key }
    }

    /// Returns the number of concurrent reads that both ends support.
    fn reads(&self, theirs: Reads) -> u8 {
        self.port.reads.min(theirs.serves).min(theirs.makes)
    }

    /// Connects the local queue pair to the peer's.
    fn connect(&self, end: &LocalEnd, id: &Id, reads: Reads) -> Result<(), String> {
        let (patience, priority) = (self.settings.patience(), self.settings.priority);
        let connected = end.pairs[0].pair.connect_by(id, self.reads(reads), &patience, priority);
        connected.map_err(|error| format!("the queue pair cannot be connected: {error}"))
    }

    /// Computes the control messages of a connection. The active side greets.
    fn control_messages(&self, peer: Rank, greets: bool, words: &[&[u8]]) -> Result<ControlMessages, String> {
        let of = |name: &'static [u8]| control_message(&self.identity, peer, !greets, &[&[name], words].concat());
        Ok(ControlMessages { greeting: of(b"greeting")?, goodbye: of(b"goodbye")?, greets, accepted: None })
    }

    /// Removes the control messages; no greeting is expected.
    fn clear_control(&self, link: &Link) {
        let accepted = link.control.lock().take().and_then(|control| control.accepted);
        if let Some(connection) = accepted {
            self.unlist(&connection);
        }
    }

    /// Resets the link to its state before the connection attempt.
    fn reset_link(&self, link: &Link) {
        let mut tx = link.tx.lock();
        if matches!(tx.state, State::Connecting) {
            self.clear_control(link);
            let over = tx.closing || self.finalizing.load(Ordering::Acquire);
            tx.state = if over { State::Gone(link.error("the link was closed here"), None) } else { State::Idle };
        }
    }
}
