//! Peers that fail or leave, and links that break.

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

/// A transport reports that it cannot reach the peer any more.
#[cold]
pub(crate) fn peer_failed<H: Host>(host: &H, slot: &Slot<H::PeerState>, btl: usize, error: Error, done: &mut Done) {
    // What came by a link that was put away by the peer's word may turn out to make no sense: nothing takes over then.
    if matches!(error, Error::Malformed { .. }) && slot.channel.lock().links.is_suspended(btl) {
        return peer_gone(host, slot, Gone::Failed(error.to_string().into()), done);
    }
    if !take_over(host, slot, btl, &error, done) {
        link_broke(host, slot, btl, error, done);
    }
}

/// The transport has reported that its link failed: another takes over. False: none can.
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

/// A transport cannot reach the peer any more. Links that stand by take over if nothing was lost with the broken one, else
/// the peer is gone.
#[cold]
pub(super) fn link_broke<H: Host>(host: &H, slot: &Slot<H::PeerState>, btl: usize, error: Error, done: &mut Done) {
    let core = host.core();
    if matches!(error, Error::PeerLeft { .. }) {
        // The transport delivers the peer's last messages and then reports that it left. But the links that this engine
        // closed at its own end are not reported: what still waits for them, such as answers, is dropped here.
        if core.check_open().is_err() {
            peer_gone(host, slot, Gone::Left, done);
        }
        return;
    }
    if slot.with(core, done, |channel, _| failover::suspend(core, &slot.peer, channel, btl, &error)) {
        // Whatever an endpoint refused, the transport is to say what came of it all.
        return core.btls[btl].btl.break_off(slot.peer.rank);
    }
    let replaced = |links: &mut Links<_>| failover::replace_substitute(core, links, btl, &error);
    match slot.with(core, done, |channel, _| replaced(&mut channel.links)) {
        None => {}
        Some(Ok(())) => return,
        Some(Err(cause)) => return peer_gone(host, slot, Gone::Failed(cause), done),
    }
    if fall_back(core, slot, btl, &error) {
        // What waited goes another way in the next turn of progress.
        return slot.with(core, done, |_, _| {});
    }
    let reason = Arc::from(error.to_string());
    let gone = match error {
        Error::Unreachable { .. } => Gone::Unreachable(reason),
        _ => Gone::Failed(reason),
    };
    peer_gone(host, slot, gone, done);
}

/// Replaces links that were never connected; false if there are none to replace them, or the transport was none of the
/// active ones' and the peer is still reached.
fn fall_back<A: PeerState>(core: &Core, slot: &Slot<A>, btl: usize, error: &Error) -> bool {
    let mut channel = slot.channel.lock();
    let idle = channel.links.control.is_empty() && channel.state.is_idle();
    let links = &mut channel.links;
    links.standby.retain(|link| link.btl != btl);
    if links.active.iter().all(|link| link.btl != btl) {
        // It only stood by, or is out of use already.
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
        let what = || format!("peer {} is reached by {to} instead: {error}", slot.peer.rank);
        if idle {
            // Nobody knows that it can be; it may just have ended.
            log::debug!("{}", what());
        } else {
            cableway_base::warn_once(&format!("fall back from {name}"), what);
        }
        links.active.push(best);
    }
    true
}

/// The peer's bytes make no sense: nothing more is taken from it.
#[cold]
pub(crate) fn disconnect<H: Host>(host: &H, slot: &Slot<H::PeerState>, malformed: &Malformed, done: &mut Done) {
    host.core().counters.malformed.increment();
    log::error!("peer {} is disconnected: {malformed}", slot.peer.rank);
    peer_gone(host, slot, Gone::Failed(malformed.to_string().into()), done);
}

/// A transport has delivered the last of a peer that ended in good order. It has left once no other transport may have
/// something of it.
pub(super) fn peer_left<H: Host>(host: &H, slot: &Slot<H::PeerState>, btl: usize, done: &mut Done) {
    let mut others = host.core().btls.iter().enumerate().filter(|(index, _)| *index != btl);
    if !others.any(|(_, other)| other.btl.hears(slot.peer.rank)) {
        peer_gone(host, slot, Gone::Left, done);
    }
}

/// Ends, with an error, every operation that involves the peer.
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

/// Closes the links to a peer that is gone once no operation of theirs is under way.
pub(super) fn drop_links<O>(core: &Core, links: &mut Links<O>) {
    if links.operations.is_empty() {
        for link in links.active.drain(..) {
            core.btls[link.btl].links.fetch_sub(1, Ordering::Relaxed);
        }
        links.standby.clear();
    }
}
