//! The owner's side of direct access: exposes registered memory to peers that ask, and revokes it.
//!
//! The first request of a peer registers the memory with the links to that peer. The grant pins the registration until
//! the peer has released it or is gone, so its end waits for that.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ahash::RandomState;
use cableway_base::Rank;
use cableway_btl::{Access, Flags, Region, Registration};
use cableway_common_cuda::{CopyOrder, Order};
use parking_lot::Mutex;

use super::exposure_wire::{EXPOSED, REVOKE, Ways, encode_exposed, parse_expose};
use super::exposures::{Granted, Ticket};
use super::grants::{Grants, NoGrant};
use super::key::Name;
use super::owner::{Owner, Pinned, disconnect};
use super::watch::watch;
use crate::am::{Arrival, Poster};
use crate::buffer::Buffer;
use crate::core::Done;
use crate::tag::Engine;
use crate::wire::{Exposed, Malformed};

/// The memory that peers reach directly.
pub(super) struct Exposing {
    pub(super) owner: Arc<Owner>,
    grants: Mutex<Grants<Reachable>>,
    /// When a peer first asked for device memory whose default stream was busy. It is exposed once the work of that moment
    /// is done.
    busy: Mutex<HashMap<(Rank, Ticket), CopyOrder, RandomState>>,
    /// Peers whose end is noticed.
    watched: Mutex<HashSet<Rank, RandomState>>,
}

/// Memory that a peer reaches until this is dropped.
struct Reachable {
    /// Ended before the pin.
    _registrations: Vec<Registration>,
    _pinned: Pinned,
}

/// What the links answer.
enum Registered {
    Reached(Box<Ways>, Vec<Registration>),
    Never,
    NotNow,
}

impl Exposing {
    pub(super) fn new(owner: Arc<Owner>) -> Self {
        Exposing { owner, grants: Mutex::default(), busy: Mutex::default(), watched: Mutex::default() }
    }

    /// Answers a peer that asks for direct access to registered memory.
    pub(super) fn expose(self: &Arc<Self>, arrival: Arrival<'_>) {
        let (poster, peer) = (arrival.poster(), arrival.source());
        let name = match parse_expose(arrival.header()) {
            Ok(name) => name,
            Err(malformed) => return disconnect(poster.engine(), peer, &malformed),
        };
        let ticket = Ticket::from(&name);
        let Ok(pinned) = self.owner.pin_all(&name) else { return answer(poster, peer, ticket, &Granted::Refused) };
        self.watch_for_grants(poster, peer);
        let reserved = self.grants.lock().reserve(peer, ticket);
        match reserved {
            Ok(()) => {}
            Err(NoGrant::Closed) => return answer(poster, peer, ticket, &Granted::Never),
            Err(NoGrant::Twice) => {
                let malformed = Malformed::OneSided("a request for memory that was exposed already");
                return disconnect(poster.engine(), peer, &malformed);
            }
        }
        let (granted, registrations) = match self.register(poster.engine(), peer, ticket, &pinned) {
            Registered::Reached(exposed, registrations) => {
                (Granted::Exposed { exposed: *exposed, len: pinned.len }, registrations)
            }
            nothing => {
                // Nothing was held.
                let _: Option<Reachable> = self.grants.lock().remove(peer, ticket);
                let never = matches!(nothing, Registered::Never);
                return answer(poster, peer, ticket, if never { &Granted::Never } else { &Granted::Refused });
            }
        };
        answer(poster, peer, ticket, &granted);
        let reachable = Reachable { _registrations: registrations, _pinned: pinned };
        let unheld = self.grants.lock().hold(peer, ticket, reachable);
        drop(unheld);
    }

    /// Registers memory with the links to a peer, unless work of its default stream may still access it.
    fn register(&self, engine: &Engine, peer: Rank, ticket: Ticket, memory: &Pinned) -> Registered {
        if memory.location.on_device() && !engine.core().copy_only() {
            // A peer's operation does not wait for the default stream of this process.
            let order = *self.busy.lock().entry((peer, ticket)).or_insert_with(CopyOrder::begin);
            let passed = engine.devices().ask_default_stream_since(&memory.location, &order);
            if matches!(passed, Ok(false)) {
                return Registered::NotNow;
            }
            self.busy.lock().remove(&(peer, ticket));
            if passed.is_err() {
                return Registered::Never;
            }
        }
        register(engine, peer, memory)
    }

    /// Drops all grants to a peer once it is gone.
    fn watch_for_grants(self: &Arc<Self>, poster: &Poster, peer: Rank) {
        if !self.watched.lock().insert(peer) {
            return;
        }
        let me = Arc::downgrade(self);
        let watched = watch(poster, peer, move |_error| {
            if let Some(exposing) = me.upgrade() {
                exposing.lose(peer);
            }
        });
        if watched.is_err() {
            self.lose(peer);
        }
    }

    fn lose(&self, peer: Rank) {
        self.busy.lock().retain(|(other, _), _| *other != peer);
        let lost = self.grants.lock().lose(peer);
        drop(lost);
    }

    /// Handles a peer's release of exposed memory. One that this process did not expose, or that ended with an earlier
    /// connection, is ignored.
    pub(super) fn released(&self, arrival: Arrival<'_>) {
        let peer = arrival.source();
        match Ticket::parse(arrival.header()) {
            Ok(ticket) => {
                let reachable = self.grants.lock().remove(peer, ticket);
                drop(reachable);
            }
            Err(malformed) => disconnect(arrival.poster().engine(), peer, &malformed),
        }
    }

    /// Has the peers that reach memory directly release it. They are told once, however often this is called.
    fn revoke(&self, poster: &Poster, name: &Name) {
        let ticket = Ticket::from(name);
        let peers = self.grants.lock().revoke(ticket.slot);
        peers.into_iter().for_each(|peer| tell(poster, peer, ticket));
    }

    /// Removes a registration that was closed, once peers have released its memory. Returns whether that is done. May be
    /// called again.
    pub(super) fn remove(&self, poster: &Poster, name: &Name) -> bool {
        self.revoke(poster, name);
        let removed = self.owner.remove(name);
        if removed {
            // Nobody can ask for it any more.
            let ticket = Ticket::from(name);
            self.busy.lock().retain(|(_, other), _| *other != ticket);
        }
        removed
    }

    /// Exposes no memory any more, and has all peers release it. Returns whether they have. May be called again.
    pub(super) fn stop_exposing(&self, poster: &Poster) -> bool {
        let (untold, over) = {
            let mut grants = self.grants.lock();
            (grants.close(), grants.is_empty())
        };
        untold.into_iter().for_each(|(peer, ticket)| tell(poster, peer, ticket));
        over
    }
}

fn tell(poster: &Poster, peer: Rank, ticket: Ticket) {
    // SAFETY: there is no data.
    let posted = unsafe { poster.post_inline(peer, REVOKE, &ticket.to_bytes(), Buffer::EMPTY) };
    if let Err(error) = posted {
        log::debug!("rank {peer} is not told to release registered memory: {error}");
    }
}

fn answer(poster: &Poster, peer: Rank, ticket: Ticket, granted: &Granted<Ways>) {
    let (header, handles) = encode_exposed(ticket, granted);
    let handles = Buffer::bytes(handles.as_ptr(), handles.len() as u64);
    // SAFETY: the handles are valid; so few bytes are copied.
    let posted = unsafe { poster.post_inline(peer, EXPOSED, &header, handles) };
    if let Err(error) = posted {
        log::debug!("rank {peer} is not told how it reaches registered memory: {error}");
    }
}

/// Registers memory with the first links to a peer that can make it reachable for the peer's gets and puts.
fn register(engine: &Engine, peer: Rank, memory: &Pinned) -> Registered {
    let (location, on_device) = (memory.location, memory.location.on_device());
    let (Some(slot), Ok(len)) = (engine.known(peer), usize::try_from(memory.len)) else { return Registered::Never };
    if len == 0 || (on_device && engine.core().copy_only()) {
        return Registered::Never;
    }
    let address = std::ptr::with_exposed_provenance_mut(memory.address);
    let region = Region { address, len, location, order: Order::None };
    let mut registrations = Vec::new();
    let mut done = Done::default();
    let ways = engine.protocols.with(slot, &mut done, |_, channel| {
        let mut expose = |access| {
            let flag = match (access, on_device) {
                (Access::RemoteRead, false) => Flags::GET,
                (Access::RemoteRead, true) => Flags::DEVICE_GET,
                (Access::RemoteWrite, false) => Flags::PUT,
                (Access::RemoteWrite, true) => Flags::DEVICE_PUT,
            };
            for link in channel.links.active.iter_mut().filter(|link| link.has(flag)) {
                // SAFETY: the memory is pinned for longer than the registration. The
                // process that registered it allows its peers to read and write it at any time.
                match unsafe { link.endpoint.register(region, access) } {
                    Ok(Some(registration)) => {
                        let handle = *registration.handle();
                        registrations.push(registration);
                        return Some(Exposed { btl: link.tag, ordinal: link.ordinal, handle, blocks: None });
                    }
                    Ok(None) => {}
                    Err(error) => {
                        channel.links.broken = Some((link.btl, error));
                        return None;
                    }
                }
            }
            None
        };
        Ways { read: expose(Access::RemoteRead), write: expose(Access::RemoteWrite) }
    });
    done.run();
    if registrations.is_empty() { Registered::Never } else { Registered::Reached(Box::new(ways), registrations) }
}
