//! A link that broke is replaced by one of another transport, or of another module of it, and the messages of both go on
//! as if it had not.
//!
//! The transport must be able to say what became of its messages ([`Flags::FAILOVER`]). At the first sign of a failure its
//! links are put away, so that all that is to be sent waits; what was being fetched or stored will be asked for as
//! fragments. When the transport has reported the failure, [`Detour`] has the two processes find out which
//! messages are missing, by a link that stood by.
//!
//! Should that link break, too, before that is over, the next takes over from both: the messages that went by the second
//! come first, which are some of those of the first. All that either side has to say of any link it says again at once,
//! by the new one: were it only made up for like messages, both might wait for what the other says later. Should no link
//! stand by any more, or the last one not be able to tell what became of its messages, the peer is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::{Error, Flags, Sent};
use smallvec::SmallVec;

use crate::completion::Done;
use crate::detour::{Detour, Next};
use crate::engine::Engine;
use crate::links::{Link, Links, Peer};
use crate::wire::{BtlTag, Header, HeaderBuffer, Malformed};

/// The replacement of links under way.
#[derive(Default)]
pub(crate) struct Failover {
    /// What broke, in that order: each but the first was to take over from the one before.
    breaks: SmallVec<[Break; 1]>,
    /// The link that takes over, once those transports have told what they leave.
    by: Option<Link>,
}

struct Break {
    /// The transport whose link broke.
    btl: usize,
    cause: Arc<str>,
    /// What the peer has said before this side was ready to hear it.
    heard: Option<u64>,
    /// There once the transport has told what it leaves.
    detour: Option<Detour>,
}

impl Engine {
    /// Puts the links of a transport away that failed, if another may take over, and says whether so. The transport is
    /// to report the failure.
    pub(crate) fn suspend(&self, peer: &Peer, links: &mut Links, btl: usize, error: &Error) -> bool {
        if links.is_suspended(btl) {
            return true;
        }
        let in_use = links.in_use();
        let survivable = match error {
            Error::PeerGone { .. } => true,
            // Of a link that was never used nothing can be missing.
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
        self.put_away(links, btl, error.to_string().into());
        true
    }

    fn put_away(&self, links: &mut Links, btl: usize, cause: Arc<str>) {
        links.longest = links.in_use().iter().map(Link::longest).max().unwrap_or(0);
        self.btls[btl].links.fetch_sub(links.in_use().len(), Ordering::Relaxed);
        links.active.clear();
        for id in links.receives.ids() {
            if let Some(fetch) = links.receives.get_mut(id).and_then(|transfer| transfer.fetch.as_mut()) {
                fetch.refused.append(&mut fetch.ranges.drain(..).collect());
            }
        }
        let failover = links.failover.get_or_insert_default();
        failover.by = None;
        failover.breaks.iter_mut().filter_map(|broke| broke.detour.as_mut()).for_each(Detour::tell_again);
        failover.breaks.push(Break { btl, cause, heard: None, detour: None });
    }

    /// The transport has reported that its link failed: another takes over. False: none can.
    pub(crate) fn take_over(&self, peer: &Peer, btl: usize, error: &Error, done: &mut Done) -> bool {
        let outcome = self.with_links(peer, done, |links, _| {
            let concerned = links.is_suspended(btl) || links.in_use().iter().any(|link| link.btl == btl);
            let malformed = matches!(error, Error::Malformed { .. });
            if !concerned || malformed || !self.suspend(peer, links, btl, error) {
                return Ok(false);
            }
            self.find_substitute(peer, links, btl)
        });
        outcome.unwrap_or_else(|malformed| {
            self.disconnect(peer, &malformed, done);
            true
        })
    }

    fn find_substitute(&self, peer: &Peer, links: &mut Links, btl: usize) -> Result<bool, Malformed> {
        let mut heard = Ok(());
        if links.broke(btl).is_some_and(|broke| broke.detour.is_none()) {
            let Some(remains) = self.btls[btl].btl.remains(peer.rank) else {
                self.end_failover(links);
                return Ok(false);
            };
            if let Some(broke) = links.broke(btl) {
                let mut detour = Detour::new(remains);
                heard = broke.heard.take().map_or(Ok(()), |received| detour.hear(received));
                broke.detour = Some(detour);
            }
        }
        let ready = |failover: &Failover| failover.breaks.iter().all(|broke| broke.detour.is_some());
        if links.failover.as_ref().is_some_and(|failover| failover.by.is_none() && ready(failover)) {
            let Some(link) = self.take_substitute(links) else {
                self.end_failover(links);
                return Ok(false);
            };
            links.failover.get_or_insert_default().by = Some(link);
        }
        heard.map(|()| true)
    }

    fn take_substitute(&self, links: &mut Links) -> Option<Link> {
        let link = links.standby.remove(links.substitute()?);
        self.btls[link.btl].links.fetch_add(1, Ordering::Relaxed);
        Some(link)
    }

    /// The peer's link has failed, and `received` messages of this process had come by it.
    pub(crate) fn resumed(&self, peer: &Peer, links: &mut Links, tag: BtlTag, received: u64) -> Result<(), Malformed> {
        let unknown = Malformed::Resume { received, delivered: 0, sent: 0 };
        let btl = self.btls.iter().position(|slot| slot.tag(peer.rank) == Some(tag)).ok_or(unknown.clone())?;
        if let Some((_, before)) = links.replaced.iter().find(|replaced| replaced.0 == btl) {
            return if *before == received { Ok(()) } else { Err(unknown) };
        }
        if links.is_suspended(btl) {
            // It was expected.
        } else if links.in_use().iter().any(|link| link.btl == btl) {
            let reason = "its end of the connection failed".to_owned();
            let error = Error::PeerGone { btl: self.btls[btl].btl.name(), peer: peer.rank, reason };
            if !self.suspend(peer, links, btl, &error) {
                return Err(unknown);
            }
            self.btls[btl].btl.break_off(peer.rank);
        } else if !self.suspend_unused(peer, links, btl) {
            return Err(unknown);
        }
        match links.broke(btl) {
            Some(Break { detour: Some(detour), .. }) => detour.hear(received),
            Some(Break { heard, .. }) if heard.is_none_or(|before| before == received) => {
                *heard = Some(received);
                Ok(())
            }
            _ => Err(unknown),
        }
    }

    /// The peer's end of a link failed by which nothing was sent from here: it stood by, or was given up. False: there is no
    /// such link.
    fn suspend_unused(&self, peer: &Peer, links: &mut Links, btl: usize) -> bool {
        let survives = |link: &Link| link.btl == btl && link.capabilities().flags.contains(Flags::FAILOVER);
        let stands_by = links.standby.iter().any(survives);
        let remains = self.btls[btl].btl.remains(peer.rank);
        if remains.is_none() {
            if !stands_by {
                return false;
            }
            self.btls[btl].btl.break_off(peer.rank);
        }
        if links.failover.is_none() {
            if links.active.len() != 1 {
                return false;
            }
            let Some(link) = links.active.pop() else { return false };
            links.failover = Some(Box::new(Failover { by: Some(link), ..Failover::default() }));
        }
        links.standby.retain(|link| link.btl != btl);
        let broke = Break { btl, cause: "its other end failed".into(), heard: None, detour: remains.map(Detour::new) };
        links.failover.get_or_insert_default().breaks.push(broke);
        true
    }

    /// Goes on with a replacement; returns how many messages left.
    pub(crate) fn advance_failover(&self, peer: &Peer, links: &mut Links) -> usize {
        let mut sent = 0;
        let mut over = None;
        let Some(failover) = &mut links.failover else { return 0 };
        let Failover { breaks, by: Some(link) } = &mut **failover else { return 0 };
        while let Some(at) = turn(breaks) {
            let broke = &mut breaks[at];
            let Some(detour) = &mut broke.detour else { return sent };
            let outcome = match detour.next() {
                Next::Tell(received) => {
                    let Some(btl) = self.btls[broke.btl].tag(peer.rank) else { return sent };
                    let header = HeaderBuffer::new(&Header::Resume { btl, received });
                    link.send_small(header.as_bytes(), &[])
                }
                Next::Send(message) => link.send_small(message, &[]),
                Next::Wait => return sent,
                Next::Over => {
                    links.replaced.extend(detour.heard().map(|heard| (broke.btl, heard)));
                    over = breaks.pop();
                    continue;
                }
            };
            match outcome {
                Ok(Sent::Done) => detour.sent(),
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
            let (from, to) = (self.btls[btl].btl.label(), self.btls[link.btl].btl.label());
            cableway_base::warn_once(&format!("fail over from {from}"), || {
                format!("peer {} is reached by {to} from here on: {cause}", peer.rank)
            });
            self.counters.failovers.increment();
            links.active.push(link);
        }
        sent + 1
    }

    /// The link of a transport fails, which was to take over: if nothing ever went by it, the next does. None: it was not to.
    ///
    /// # Errors
    /// Why the peer is gone: no other can.
    pub(crate) fn replace_substitute(
        &self,
        links: &mut Links,
        btl: usize,
        error: &Error,
    ) -> Option<Result<(), Arc<str>>> {
        let failover = links.failover.as_ref()?;
        let link = failover.by.as_ref().filter(|link| link.btl == btl)?;
        let cause = failover.breaks.first().map_or_else(|| error.to_string().into(), |broke| Arc::clone(&broke.cause));
        let connected = link.carried || matches!(error, Error::PeerGone { .. } | Error::Malformed { .. });
        let next = if connected { None } else { self.take_substitute(links) };
        let Some(next) = next else { return Some(Err(cause)) };
        log::debug!("it is not {} that takes over: {error}", self.btls[btl].btl.label());
        self.btls[btl].links.fetch_sub(1, Ordering::Relaxed);
        links.failover.get_or_insert_default().by = Some(next);
        Some(Ok(()))
    }

    /// The peer is gone: there is nothing to replace any more.
    pub(crate) fn end_failover(&self, links: &mut Links) {
        if let Some(link) = links.failover.take().and_then(|failover| failover.by) {
            self.btls[link.btl].links.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Which of them has something to send: first what is to be told, then what went by the link that broke last.
fn turn(breaks: &[Break]) -> Option<usize> {
    let tells = |broke: &Break| matches!(broke.detour.as_ref().map(Detour::next), Some(Next::Tell(_)));
    breaks.iter().position(tells).or(breaks.len().checked_sub(1))
}

impl Links {
    /// Those that carry messages, or the one that is to.
    fn in_use(&self) -> &[Link] {
        self.failover.as_ref().map_or(&self.active, |failover| failover.by.as_slice())
    }

    /// Whether a link of the transport broke and is being made up for.
    pub(crate) fn is_suspended(&self, btl: usize) -> bool {
        self.failover.as_ref().is_some_and(|failover| failover.breaks.iter().any(|broke| broke.btl == btl))
    }

    fn broke(&mut self, btl: usize) -> Option<&mut Break> {
        self.failover.as_mut()?.breaks.iter_mut().find(|broke| broke.btl == btl)
    }

    /// Which of the links that stand by could carry every message of those that broke.
    fn substitute(&self) -> Option<usize> {
        let longest = self.in_use().iter().map(Link::longest).max().unwrap_or(self.longest);
        self.standby.iter().rposition(|link| link.capabilities().max_send_size >= longest)
    }
}

impl Link {
    fn longest(&self) -> usize {
        let limits = self.capabilities();
        limits.max_send_size.max(limits.device_max_send_size).max(limits.inline_limit)
    }
}
