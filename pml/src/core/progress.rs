//! The progress engine: polls the transports, passes their events to the layers above, and continues what waited.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

use cableway_base::Rank;
use cableway_btl::{Error, Received, Token, Upcalls};

use super::completion::Done;
use super::failover;
use super::failure::{self, drop_links};
use super::host::Host;
use super::peer::{Channel, PeerState, Slot};

/// Makes progress without blocking. Returns how many events there were.
#[inline]
pub(crate) fn turn<H: Host>(host: &H) -> usize {
    let with_idle = host.core().next_turn();
    turn_of(host, with_idle)
}

/// Makes progress as [`turn`] does, and also polls transports that are not in use.
pub(super) fn turn_all<H: Host>(host: &H) -> usize {
    turn_of(host, true)
}

#[inline(always)]
fn turn_of<H: Host>(host: &H, with_idle: bool) -> usize {
    let core = host.core();
    let mut events = 0;
    if core.is_forked() {
        return events;
    }
    for (index, slot) in core.btls.iter().enumerate() {
        let idle = slot.is_idle();
        if idle && !with_idle {
            continue;
        }
        let mut delivery = Delivery { host, btl: index, idle, done: RefCell::new(Done::gathering()) };
        events += slot.btl.progress(&delivery);
        delivery.done.get_mut().run_now();
    }
    if !core.waiting.is_empty() {
        events += retry(host);
    }
    if host.has_copies() {
        let ended = host.poll_copies();
        // Their control messages have gathered.
        if ended != 0 && !core.waiting.is_empty() {
            events += retry(host);
        }
        events += ended;
    }
    if events == 0 && !core.orders.is_empty() {
        core.orders.ask(&core.devices);
    }
    events
}

/// Returns whether there is work that no transport reports.
pub(super) fn has_work<H: Host>(host: &H) -> bool {
    let core = host.core();
    !core.waiting.is_empty() || host.has_copies() || !core.orders.is_empty()
}

/// Retries what busy links refused, and handles broken links.
#[cold]
fn retry<H: Host>(host: &H) -> usize {
    let core = host.core();
    let mut events = 0;
    let mut done = Done::default();
    for slot in core.waiting.take().into_iter().filter_map(|rank| host.peers().known(rank)) {
        let (moved, broken) = slot.with(core, &mut done, |channel, done| {
            channel.links.listed = false;
            // Handle the earlier failure first; otherwise the broken link would be tried again.
            let moved = if channel.links.broken.is_none() { advance(host, slot, channel, done) } else { 0 };
            (moved, channel.links.broken.take())
        });
        events += moved;
        if let Some((btl, error)) = broken {
            failure::link_broke(host, slot, btl, error, &mut done);
        }
    }
    done.run();
    events
}

/// Sends what waits for the peer's links, as far as they take it. Returns how much they took.
fn advance<H: Host>(
    host: &H,
    slot: &Slot<H::PeerState>,
    channel: &mut Channel<H::PeerState>,
    done: &mut Done,
) -> usize {
    let Channel { links, state } = channel;
    if slot.peer.gone().is_some() {
        links.control.clear();
        state.clear_queues();
        return 0;
    }
    let resent = failover::advance(host.core(), &slot.peer, links);
    let gathered = links.control.has_gathered();
    links.send_gathered();
    let resent = resent + usize::from(gathered && links.control.waiting.is_empty());
    let before = links.control.waiting.len();
    let free = links.flush_control();
    let moved = resent + before.saturating_sub(links.control.waiting.len());
    // Mostly only gathered answers waited. To ask every protocol would delay the next message.
    if free && !state.is_idle() { moved + host.advance(slot, channel, done) } else { moved }
}

/// One call of a transport's `progress`. Hooks of completed requests run after it, when no lock of the engine or the
/// transport is held.
struct Delivery<'h, H> {
    host: &'h H,
    /// Index of the transport.
    btl: usize,
    /// Whether the transport is polled rarely, because this process neither uses it nor has received by it.
    idle: bool,
    done: RefCell<Done>,
}

impl<H: Host> Upcalls for Delivery<'_, H> {
    #[inline]
    fn receive(&self, rank: Rank, message: Received<'_>) {
        let done = &mut *self.done.borrow_mut();
        if self.idle {
            self.host.core().btls[self.btl].heard.store(true, Relaxed);
        }
        let slot = match self.host.peers().known(rank) {
            Some(slot) => slot,
            None => match self.first_message(rank) {
                Some(slot) => slot,
                None => return,
            },
        };
        if slot.peer.gone().is_some() {
            return;
        }
        if let Err(malformed) = self.host.received(slot, &message, done) {
            failure::disconnect(self.host, slot, &malformed, done);
        }
    }

    fn completed(&self, token: Token, result: Result<(), Error>) {
        let done = &mut *self.done.borrow_mut();
        let (rank, operation) = ((token.0 >> 32) as Rank, token.0 as u32 as usize);
        let Some(slot) = self.host.peers().known(rank) else { return };
        let core = self.host.core();
        slot.with(core, done, |channel, done| {
            let btl = &core.btls[self.btl].btl;
            let Some(operation) = channel.links.operations.try_remove(operation) else {
                log::error!("{} completed an unknown operation", btl.name());
                return;
            };
            // One transport refuses some requests that another accepts.
            let result = result.map_err(|error| {
                if !failover::suspend(core, &slot.peer, channel, self.btl, &error) {
                    return error;
                }
                btl.break_off(rank);
                Error::Unavailable { btl: btl.name(), operation: "a transfer", reason: error.to_string() }
            });
            self.host.completed(slot, channel, operation, result, done);
            if slot.peer.gone().is_some() {
                drop_links(core, &mut channel.links);
            }
        });
    }

    fn peer_failed(&self, rank: Rank, error: Error) {
        let done = &mut *self.done.borrow_mut();
        if let Some(slot) = self.gone(rank) {
            failure::peer_failed(self.host, slot, self.btl, error, done);
        }
    }

    fn peer_left(&self, rank: Rank) {
        let done = &mut *self.done.borrow_mut();
        if let Some(slot) = self.gone(rank) {
            failure::peer_left(self.host, slot, self.btl, done);
        }
    }
}

impl<H: Host> Delivery<'_, H> {
    /// Finds the peer of a message, and connects it if this is its first.
    #[cold]
    fn first_message(&self, rank: Rank) -> Option<&Slot<H::PeerState>> {
        let core = self.host.core();
        match self.host.peers().get(core, rank) {
            Ok(slot) => Some(slot),
            Err(error) => {
                // Without a link no answer can be sent, so nothing can be received in order.
                log::error!("lost a message from peer {rank}: {error}");
                None
            }
        }
    }

    /// Finds a peer that is gone. A peer without earlier messages connected only to check that this process exists.
    /// Receives may name it, so connect it now.
    #[cold]
    fn gone(&self, rank: Rank) -> Option<&Slot<H::PeerState>> {
        if let Some(slot) = self.host.peers().known(rank) {
            return Some(slot);
        }
        let core = self.host.core();
        core.check_open().ok()?;
        let met = self.host.peers().get(core, rank);
        met.inspect_err(|error| log::debug!("peer {rank} is gone and was never connected: {error}")).ok()
    }
}
