//! Handles peers that fail or leave, and links that break.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::Error;

use super::completion::Done;
use super::failover;
use super::host::Host;
use super::links::Links;
use super::peer::{Gone, PeerState, Slot};
use super::shared::Core;
use crate::wire::Malformed;

/// Handles a transport's report that it cannot reach the peer any more.
#[cold]
pub(crate) fn peer_failed<H: Host>(host: &H, slot: &Slot<H::PeerState>, btl: usize, error: Error, done: &mut Done) {
    // A link that was suspended at the peer's request may still deliver malformed bytes. Then no link takes over.
    if matches!(error, Error::Malformed { .. }) && slot.channel.lock().links.is_suspended(btl) {
        return peer_gone(host, slot, Gone::Failed(error.to_string().into()), done);
    }
    if !take_over(host, slot, btl, &error, done) {
        link_broke(host, slot, btl, error, done);
    }
}

/// Has another link take over after the transport reported a failure. Returns false if none can.
fn take_over<H: Host>(host: &H, slot: &Slot<H::PeerState>, btl: usize, error: &Error, done: &mut Done) -> bool {
    let core = host.core();
    let outcome = slot.with(core, done, |channel, _| {
        let links = &channel.links;
        let concerned = links.is_suspended(btl) || links.in_use().iter().any(|link| link.btl == btl);
        let malformed = matches!(error, Error::Malformed { .. });
        if !concerned || malformed || !failover::suspend(core, &slot.peer, channel, btl, error) {
            return Ok(false);
        }
        failover::find_substitute(core, &slot.peer, &mut channel.links, btl)
    });
    outcome.unwrap_or_else(|malformed| {
        disconnect(host, slot, &malformed, done);
        true
    })
}

/// Handles a transport that cannot reach the peer any more. Standby links take over if the broken one lost nothing;
/// otherwise the peer is gone.
#[cold]
pub(super) fn link_broke<H: Host>(host: &H, slot: &Slot<H::PeerState>, btl: usize, error: Error, done: &mut Done) {
    let core = host.core();
    if matches!(error, Error::PeerLeft { .. }) {
        // The transport delivers the peer's last messages and then reports that it left. It does not report links that
        // this engine closed. Drop what still waits for them, such as answers.
        if core.check_open().is_err() {
            peer_gone(host, slot, Gone::Left, done);
        }
        return;
    }
    if slot.with(core, done, |channel, _| failover::suspend(core, &slot.peer, channel, btl, &error)) {
        // Even if an endpoint refused something, the transport reports what became of all messages.
        return core.btls[btl].btl.break_off(slot.peer.rank);
    }
    let replaced = |links: &mut Links<_>| failover::replace_substitute(core, links, btl, &error);
    match slot.with(core, done, |channel, _| replaced(&mut channel.links)) {
        None => {}
        Some(Ok(())) => return,
        Some(Err(cause)) => return peer_gone(host, slot, Gone::Failed(cause), done),
    }
    if fall_back(core, slot, btl, &error) {
        // Waiting messages take another link in the next turn of progress.
        return slot.with(core, done, |_, _| {});
    }
    let reason = Arc::from(error.to_string());
    let gone = match error {
        Error::Unreachable { .. } => Gone::Unreachable(reason),
        _ => Gone::Failed(reason),
    };
    peer_gone(host, slot, gone, done);
}

/// Replaces links that were never connected. Returns false if there is no replacement, or if the transport is not in
/// use and the peer is still reachable.
fn fall_back<A: PeerState>(core: &Core, slot: &Slot<A>, btl: usize, error: &Error) -> bool {
    let mut channel = slot.channel.lock();
    let idle = channel.links.control.is_empty() && channel.state.is_idle();
    let links = &mut channel.links;
    links.standby.retain(|link| link.btl != btl);
    if links.active.iter().all(|link| link.btl != btl) {
        // The link was only on standby, or is out of use already.
        return !links.active.is_empty() || links.failover.is_some();
    }
    let connected = matches!(error, Error::PeerGone { .. } | Error::Malformed { .. });
    let carried = links.active.iter().any(|link| link.btl == btl && link.carried);
    if connected || carried || slot.peer.gone().is_some() {
        return false;
    }
    let name = core.btls[btl].btl.label();
    let before = links.active.len();
    links.active.retain(|link| link.btl != btl);
    core.btls[btl].links.fetch_sub(before - links.active.len(), Ordering::Relaxed);
    if links.active.is_empty() {
        let Some(best) = links.standby.pop() else { return false };
        core.btls[best.btl].links.fetch_add(1, Ordering::Relaxed);
        let to = core.btls[best.btl].btl.label();
        let what = || format!("peer {} uses {to} instead: {error}", slot.peer.rank);
        if idle {
            // Nobody knows yet whether the peer is reachable. It may just have ended.
            log::debug!("{}", what());
        } else {
            cableway_base::warn_once(&format!("fall back from {name}"), what);
        }
        links.active.push(best);
    }
    true
}

/// Disconnects a peer that sent malformed bytes.
#[cold]
pub(crate) fn disconnect<H: Host>(host: &H, slot: &Slot<H::PeerState>, malformed: &Malformed, done: &mut Done) {
    host.core().counters.malformed.increment();
    log::error!("disconnected peer {}: {malformed}", slot.peer.rank);
    peer_gone(host, slot, Gone::Failed(malformed.to_string().into()), done);
}

/// Handles a transport that delivered the last message of a peer that ended in good order. The peer has left once no
/// other transport can hold a message of it.
pub(super) fn peer_left<H: Host>(host: &H, slot: &Slot<H::PeerState>, btl: usize, done: &mut Done) {
    let mut others = host.core().btls.iter().enumerate().filter(|(index, _)| *index != btl);
    if !others.any(|(_, other)| other.btl.is_connected(slot.peer.rank)) {
        peer_gone(host, slot, Gone::Left, done);
    }
}

/// Ends every operation that involves the peer, with an error.
fn peer_gone<H: Host>(host: &H, slot: &Slot<H::PeerState>, gone: Gone, done: &mut Done) {
    if !slot.peer.mark_gone(gone) {
        return;
    }
    {
        let mut channel = slot.channel.lock();
        failover::end(host.core(), &mut channel.links);
        channel.links.control.clear();
        channel.state.clear_queues();
        host.abandon(slot, &mut channel, done);
        drop_links(host.core(), &mut channel.links);
    }
    host.ended(slot, done);
}

/// Closes the links to a peer that is gone once none of their operations is under way.
pub(super) fn drop_links<O>(core: &Core, links: &mut Links<O>) {
    if links.operations.is_empty() {
        for link in links.active.drain(..) {
            core.btls[link.btl].links.fetch_sub(1, Ordering::Relaxed);
        }
        links.standby.clear();
    }
}
