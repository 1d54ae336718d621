//! A link that broke is replaced by one of another transport, and the messages of both go on as if it had not.
//!
//! The transport must be able to say what became of its messages ([`Flags::FAILOVER`]). At the first sign of a failure its
//! links are put away, so that all that is to be sent waits; what was being fetched or stored will be asked for as
//! fragments. When the transport has reported the failure, [`Detour`] has the two processes find out which
//! messages are missing, by a link that stood by. Should that link not work either, the peer is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cableway_btl::{Error, Flags, Sent};

use crate::completion::Done;
use crate::detour::{Detour, Next};
use crate::engine::Engine;
use crate::links::{Link, Links, Peer};
use crate::wire::{BtlTag, Header, HeaderBuffer, Malformed};

/// A link's replacement under way.
pub(crate) struct Failover {
    /// The transport whose link broke.
    broken: usize,
    cause: Arc<str>,
    /// What the peer has said before this side was ready to hear it.
    heard: Option<u64>,
    /// The link that takes over, once the transport has told what it leaves.
    by: Option<(Link, Detour)>,
}

impl Engine {
    /// Puts the links of a transport away that failed, if another may take over, and says whether so. The transport is
    /// to report the failure.
    pub(crate) fn suspend(&self, peer: &Peer, links: &mut Links, btl: usize, error: &Error) -> bool {
        if let Some(failover) = &links.failover {
            return failover.broken == btl;
        }
        let carried = links.active.iter().any(|link| link.carried);
        let survivable = match error {
            Error::PeerGone { .. } => true,
            // Of a link that was never used nothing can be missing.
            Error::System { .. } => carried,
            _ => false,
        };
        let ours = |link: &Link| link.btl == btl && link.capabilities().flags.contains(Flags::FAILOVER);
        if !survivable
            || peer.gone().is_some()
            || links.active.is_empty()
            || !links.active.iter().all(ours)
            || links.substitute().is_none()
        {
            return false;
        }
        self.put_away(links, btl, error.to_string().into());
        true
    }

    fn put_away(&self, links: &mut Links, btl: usize, cause: Arc<str>) {
        links.longest = links.active.iter().map(Link::longest).max().unwrap_or(0);
        self.btls[btl].links.fetch_sub(links.active.len(), Ordering::Relaxed);
        links.active.clear();
        for id in links.receives.ids() {
            if let Some(fetch) = links.receives.get_mut(id).and_then(|transfer| transfer.fetch.as_mut()) {
                fetch.refused.append(&mut fetch.ranges.drain(..).collect());
            }
        }
        links.failover = Some(Box::new(Failover { broken: btl, cause, heard: None, by: None }));
    }

    /// The transport has reported that its link failed: another takes over. False: none can.
    pub(crate) fn take_over(&self, peer: &Peer, btl: usize, error: &Error, done: &mut Done) -> bool {
        let outcome = self.with_links(peer, done, |links, _| {
            let standing_by = links.failover.is_none() && links.active.iter().all(|link| link.btl != btl);
            let malformed = matches!(error, Error::Malformed { .. });
            if standing_by || malformed || !self.suspend(peer, links, btl, error) {
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
        if links.failover.as_ref().is_some_and(|failover| failover.by.is_some()) {
            return Ok(true);
        }
        let (Some(remains), Some(place)) = (self.btls[btl].btl.remains(peer.rank), links.substitute()) else {
            links.failover = None;
            return Ok(false);
        };
        let Some(failover) = &mut links.failover else { return Ok(false) };
        let link = links.standby.remove(place);
        self.btls[link.btl].links.fetch_add(1, Ordering::Relaxed);
        let mut detour = Detour::new(remains);
        let heard = failover.heard.map_or(Ok(()), |received| detour.hear(received));
        failover.by = Some((link, detour));
        heard.map(|()| true)
    }

    /// The peer's link has failed, and `received` messages of this process had come by it.
    pub(crate) fn resumed(&self, peer: &Peer, links: &mut Links, tag: BtlTag, received: u64) -> Result<(), Malformed> {
        let tagged = |slot: &crate::engine::BtlSlot| BtlTag::of(slot.btl.name()) == tag;
        let unknown = Malformed::Resume { received, delivered: 0, sent: 0 };
        let btl = self.btls.iter().position(tagged).ok_or(unknown.clone())?;
        if links.failover.is_none() && links.active.iter().all(|link| link.btl != btl) {
            // It was given up here before anything was sent by it.
            let remains = self.btls[btl].btl.remains(peer.rank).ok_or(unknown.clone())?;
            let link = links.active.pop().filter(|_| links.active.is_empty()).ok_or(unknown)?;
            let mut detour = Detour::new(remains);
            detour.hear(received)?;
            let cause = "it was given up before".into();
            links.failover = Some(Box::new(Failover { broken: btl, cause, heard: None, by: Some((link, detour)) }));
            return Ok(());
        }
        if links.failover.is_none() {
            let reason = "its end of the connection failed".to_owned();
            let error = Error::PeerGone { btl: self.btls[btl].btl.name(), peer: peer.rank, reason };
            if !self.suspend(peer, links, btl, &error) {
                return Err(unknown);
            }
            self.btls[btl].btl.break_off(peer.rank);
        }
        match &mut links.failover {
            Some(failover) if failover.broken == btl && failover.heard.is_none() => match &mut failover.by {
                Some((_, detour)) => detour.hear(received),
                None => {
                    failover.heard = Some(received);
                    Ok(())
                }
            },
            _ => Err(unknown),
        }
    }

    /// Goes on with a replacement; returns how many messages left.
    pub(crate) fn advance_failover(&self, peer: &Peer, links: &mut Links) -> usize {
        let Some(failover) = &mut links.failover else { return 0 };
        let tag = BtlTag::of(self.btls[failover.broken].btl.name());
        let Some((link, detour)) = &mut failover.by else { return 0 };
        let mut sent = 0;
        loop {
            let outcome = match detour.next() {
                Next::Tell(received) => {
                    let header = HeaderBuffer::new(&Header::Resume { btl: tag, received });
                    link.send_small(header.as_bytes(), &[])
                }
                Next::Send(message) => link.send_small(message, &[]),
                Next::Wait => return sent,
                Next::Over => break,
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
        if let Some(Failover { by: Some((link, _)), cause, broken, .. }) =
            links.failover.take().map(|failover| *failover)
        {
            let (from, to) = (self.btls[broken].btl.name(), self.btls[link.btl].btl.name());
            cableway_base::warn_once(&format!("fail over from {from}"), || {
                format!("peer {} is reached by {to} from here on: {cause}", peer.rank)
            });
            self.counters.failovers.increment();
            links.active.push(link);
        }
        sent + 1
    }

    /// Why the peer is gone if the transport, by which the messages of a broken link were to go, fails, too.
    pub(crate) fn failed_over_to(&self, peer: &Peer, btl: usize) -> Option<Arc<str>> {
        let links = peer.links.lock();
        let failover = links.failover.as_ref()?;
        let (link, _) = failover.by.as_ref()?;
        (link.btl == btl).then(|| Arc::clone(&failover.cause))
    }

    /// The peer is gone: there is nothing to replace any more.
    pub(crate) fn end_failover(&self, links: &mut Links) {
        if let Some((link, _)) = links.failover.take().and_then(|failover| failover.by) {
            self.btls[link.btl].links.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Links {
    /// Which of the links that stand by could carry every message of those that broke.
    fn substitute(&self) -> Option<usize> {
        let longest = self.active.iter().map(Link::longest).max().unwrap_or(self.longest);
        self.standby.iter().rposition(|link| link.capabilities().max_send_size >= longest)
    }
}

impl Link {
    fn longest(&self) -> usize {
        let limits = self.capabilities();
        limits.max_send_size.max(limits.device_max_send_size).max(limits.inline_limit)
    }
}
