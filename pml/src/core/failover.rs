//! Replaces a broken link by one of another transport or module, without losing or repeating a message.
//!
//! The transport must report what became of its messages ([`Flags::FAILOVER`]). At the first sign of a failure its
//! links are suspended, so that everything to be sent waits. Data that was being fetched or stored will be requested
//! again as fragments. Once the transport has reported the failure, a [`Replay`] finds out with the peer which messages
//! are missing. It uses a standby link.
//!
//! If that link breaks too, the next link replaces both. The messages of the second link come first, because they
//! include some of the first. Each side repeats all its reports of every broken link at once on the new link: otherwise
//! each side might wait for a report that the other sends later. If no standby link is left, or the last one cannot
//! report what became of its messages, the peer is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::header::Resume;
use super::link::Link;
use super::links::Links;
use super::peer::{Channel, Peer, PeerState};
use super::replacement::{Break, Failover, turn};
use super::replay::{Next, Replay};
use super::shared::Core;
use crate::wire::{HeaderBuffer, Malformed};
use cableway_btl::{Error, Flags, Sent};

/// Suspends the links of a failed transport if another may take over, and returns whether it did. The transport reports
/// the failure later.
pub(crate) fn suspend<A: PeerState>(
    core: &Core,
    peer: &Peer,
    channel: &mut Channel<A>,
    btl: usize,
    error: &Error,
) -> bool {
    let links = &mut channel.links;
    if links.is_suspended(btl) {
        return true;
    }
    let in_use = links.in_use();
    let survivable = match error {
        Error::PeerGone { .. } => true,
        // A link that was never used has lost nothing.
        Error::System { .. } => in_use.iter().any(|link| link.carried),
        _ => false,
    };
    let ours = |link: &Link| link.btl == btl && link.capabilities().flags.contains(Flags::FAILOVER);
    if !survivable
        || peer.gone().is_some()
        || in_use.is_empty()
        || !in_use.iter().all(ours)
        || links.substitute().is_none()
    {
        return false;
    }
    put_away(core, channel, btl, error.to_string().into());
    true
}

fn put_away<A: PeerState>(core: &Core, channel: &mut Channel<A>, btl: usize, cause: Arc<str>) {
    let Channel { links, state } = channel;
    links.longest = links.in_use().iter().map(Link::longest).max().unwrap_or(0);
    core.btls[btl].links.fetch_sub(links.in_use().len(), Ordering::Relaxed);
    links.active.clear();
    state.links_put_away();
    let failover = links.failover.get_or_insert_default();
    failover.by = None;
    failover.breaks.iter_mut().filter_map(|broke| broke.replay.as_mut()).for_each(Replay::tell_again);
    failover.breaks.push(Break { btl, cause, heard: None, replay: None });
}

/// Selects the replacement after the transport reported the failure. Returns false if there is none.
pub(crate) fn find_substitute<O>(
    core: &Core,
    peer: &Peer,
    links: &mut Links<O>,
    btl: usize,
) -> Result<bool, Malformed> {
    let mut heard = Ok(());
    if links.broke(btl).is_some_and(|broke| broke.replay.is_none()) {
        let Some(remains) = core.btls[btl].btl.remains(peer.rank) else {
            end(core, links);
            return Ok(false);
        };
        if let Some(broke) = links.broke(btl) {
            let mut replay = Replay::new(remains);
            heard = broke.heard.take().map_or(Ok(()), |received| replay.hear(received));
            broke.replay = Some(replay);
        }
    }
    let ready = |failover: &Failover| failover.breaks.iter().all(|broke| broke.replay.is_some());
    if links.failover.as_ref().is_some_and(|failover| failover.by.is_none() && ready(failover)) {
        let Some(link) = take_substitute(core, links) else {
            end(core, links);
            return Ok(false);
        };
        links.failover.get_or_insert_default().by = Some(link);
    }
    heard.map(|()| true)
}

fn take_substitute<O>(core: &Core, links: &mut Links<O>) -> Option<Link> {
    let link = links.standby.remove(links.substitute()?);
    core.btls[link.btl].links.fetch_add(1, Ordering::Relaxed);
    Some(link)
}

/// Handles the peer's report that its link failed after it had received `received` messages of this process.
pub(crate) fn resumed<A: PeerState>(
    core: &Core,
    peer: &Peer,
    channel: &mut Channel<A>,
    Resume { btl: tag, received }: Resume,
) -> Result<(), Malformed> {
    let unknown = Malformed::Resume { received, delivered: 0, sent: 0 };
    let btl = core.btls.iter().position(|slot| slot.tag(peer.rank) == Some(tag)).ok_or(unknown.clone())?;
    if let Some((_, before)) = channel.links.replaced.iter().find(|replaced| replaced.0 == btl) {
        return if *before == received { Ok(()) } else { Err(unknown) };
    }
    if channel.links.is_suspended(btl) {
        // This side knows of the failure already.
    } else if channel.links.in_use().iter().any(|link| link.btl == btl) {
        let reason = "its end of the connection failed".to_owned();
        let error = Error::PeerGone { btl: core.btls[btl].btl.name(), peer: peer.rank, reason };
        if !suspend(core, peer, channel, btl, &error) {
            return Err(unknown);
        }
        core.btls[btl].btl.break_off(peer.rank);
    } else if !suspend_unused(core, peer, &mut channel.links, btl) {
        return Err(unknown);
    }
    match channel.links.broke(btl) {
        Some(Break { replay: Some(replay), .. }) => replay.hear(received),
        Some(Break { heard, .. }) if heard.is_none_or(|before| before == received) => {
            *heard = Some(received);
            Ok(())
        }
        _ => Err(unknown),
    }
}

/// Handles the failure of a link that this side never sent on: a standby link, or one already given up. Returns false
/// if there is no such link.
fn suspend_unused<O>(core: &Core, peer: &Peer, links: &mut Links<O>, btl: usize) -> bool {
    let survives = |link: &Link| link.btl == btl && link.capabilities().flags.contains(Flags::FAILOVER);
    let stands_by = links.standby.iter().any(survives);
    let remains = core.btls[btl].btl.remains(peer.rank);
    if remains.is_none() {
        if !stands_by {
            return false;
        }
        core.btls[btl].btl.break_off(peer.rank);
    }
    if links.failover.is_none() {
        if links.active.len() != 1 {
            return false;
        }
        let Some(link) = links.active.pop() else { return false };
        links.failover = Some(Box::new(Failover { by: Some(link), ..Failover::default() }));
    }
    links.standby.retain(|link| link.btl != btl);
    let broke = Break { btl, cause: "its other end failed".into(), heard: None, replay: remains.map(Replay::new) };
    links.failover.get_or_insert_default().breaks.push(broke);
    true
}

/// Continues the replacement. Returns how many messages left.
pub(crate) fn advance<O>(core: &Core, peer: &Peer, links: &mut Links<O>) -> usize {
    let mut sent = 0;
    let mut over = None;
    let Some(failover) = &mut links.failover else { return 0 };
    let Failover { breaks, by: Some(link) } = &mut **failover else { return 0 };
    while let Some(at) = turn(breaks) {
        let broke = &mut breaks[at];
        let Some(replay) = &mut broke.replay else { return sent };
        let outcome = match replay.next() {
            Next::Tell(received) => {
                let Some(btl) = core.btls[broke.btl].tag(peer.rank) else { return sent };
                let header = HeaderBuffer::new(&Resume { btl, received });
                link.send_small(header.as_bytes(), &[])
            }
            Next::Send(message) => link.send_small(message, &[]),
            Next::Wait => return sent,
            Next::Over => {
                links.replaced.extend(replay.heard().map(|heard| (broke.btl, heard)));
                over = breaks.pop();
                continue;
            }
        };
        match outcome {
            Ok(Sent::Done) => replay.sent(),
            Ok(Sent::Busy) => return sent,
            Err(error) => {
                links.broken = Some((link.btl, error));
                return sent;
            }
        }
        sent += 1;
    }
    let link = links.failover.take().and_then(|failover| failover.by);
    if let (Some(Break { btl, cause, .. }), Some(link)) = (over, link) {
        let (from, to) = (core.btls[btl].btl.label(), core.btls[link.btl].btl.label());
        cableway_base::warn_once(&format!("fail over from {from}"), || {
            format!("peer {} uses {to} from now on: {cause}", peer.rank)
        });
        core.counters.failovers.increment();
        links.active.push(link);
    }
    sent + 1
}

/// Skips a replacement link that failed before it was used, and takes the next. Returns `None` if the link was not a
/// replacement.
///
/// # Errors
/// The reason why the peer is gone, if no other link can take over.
pub(crate) fn replace_substitute<O>(
    core: &Core,
    links: &mut Links<O>,
    btl: usize,
    error: &Error,
) -> Option<Result<(), Arc<str>>> {
    let failover = links.failover.as_ref()?;
    let link = failover.by.as_ref().filter(|link| link.btl == btl)?;
    let cause = failover.breaks.first().map_or_else(|| error.to_string().into(), |broke| Arc::clone(&broke.cause));
    let connected = link.carried || matches!(error, Error::PeerGone { .. } | Error::Malformed { .. });
    let next = if connected { None } else { take_substitute(core, links) };
    let Some(next) = next else { return Some(Err(cause)) };
    log::debug!("{} cannot take over: {error}", core.btls[btl].btl.label());
    core.btls[btl].links.fetch_sub(1, Ordering::Relaxed);
    links.failover.get_or_insert_default().by = Some(next);
    Some(Ok(()))
}

/// Drops the replacement of a peer that is gone.
pub(crate) fn end<O>(core: &Core, links: &mut Links<O>) {
    if let Some(link) = links.failover.take().and_then(|failover| failover.by) {
        core.btls[link.btl].links.fetch_sub(1, Ordering::Relaxed);
    }
}
