//! The sender's side.

use crate::completion::Done;
use crate::engine::Engine;
use crate::links::{Links, Peer};
use crate::send::Phase;
use crate::wire::{Envelope, Exposed, Id, Invite, Malformed, Put};

impl Engine {
    /// The receiver says where a message is to be stored.
    pub(crate) fn invited(
        &self,
        peer: &Peer,
        links: &mut Links,
        invite: Invite,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let announced = |envelope: &Envelope, phase| phase == Phase::Announced && invite.envelope.names(envelope);
        match links.sends.find(|sent| announced(&sent.envelope, sent.phase)) {
            Some(id) => self.accept_invitation(peer, links, id, Box::new(invite), done),
            None => {
                // For one that will be, or one that went another way; the receiver knows which.
                links.invitations.taken = Some(Box::new(invite));
                Ok(())
            }
        }
    }

    /// A message was announced. If it is invited already, it is stored at once.
    #[inline]
    pub(crate) fn look_for_invitation(&self, peer: &Peer, links: &mut Links, id: Id, done: &mut Done) {
        if links.invitations.taken.is_some() {
            self.take_invitation(peer, links, id, done);
        }
    }

    #[inline(never)]
    fn take_invitation(&self, peer: &Peer, links: &mut Links, id: Id, done: &mut Done) {
        let Some(sent) = links.sends.get_mut(id).filter(|sent| sent.phase == Phase::Announced) else { return };
        let envelope = sent.envelope;
        if let Some(invite) = links.invitations.taken.take_if(|invite| invite.envelope.names(&envelope)) {
            // It was not asked for in any other way, and all of it is.
            let accepted = self.accept_invitation(peer, links, id, invite, done);
            debug_assert!(accepted.is_ok(), "{accepted:?}");
        }
    }

    /// Stores a message that was announced, as soon as the receiver lets it. What the receiver was not told to expect is
    /// left: it asks otherwise.
    fn accept_invitation(
        &self,
        peer: &Peer,
        links: &mut Links,
        id: Id,
        invite: Box<Invite>,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        let Links { sends, active, invitations, .. } = links;
        let Some(sent) = sends.get_mut(id).filter(|sent| sent.invitable && sent.len <= invite.len) else {
            return Ok(());
        };
        if !active.iter_mut().any(|link| link.endpoint.claim(invite.offer)) {
            // Until it can be, or the receiver asks otherwise, as it does where it took the invitation back.
            invitations.pending.push((id, invite));
            return Ok(());
        }
        let (len, receiver) = (sent.len, invite.receiver);
        let Exposed { btl, ordinal, handle, .. } = invite.to;
        if self.put_whole(peer, links, (id, receiver, len), (btl, ordinal, &handle), true, done)? {
            self.counters.protocol_put.increment();
            self.counters.bytes_put.add(len);
            return Ok(());
        }
        let put = Put { sender: id, receiver, offset: 0, len, total: len, to: invite.to };
        self.asked_to_put(peer, links, &put, done)
    }

    /// Looks whether buffers are free that peers have told of; how many were.
    #[inline]
    pub(crate) fn pump_invitations(&self, peer: &Peer, links: &mut Links, done: &mut Done) -> usize {
        if links.invitations.pending.is_empty() { 0 } else { self.pump_pending(peer, links, done) }
    }

    fn pump_pending(&self, peer: &Peer, links: &mut Links, done: &mut Done) -> usize {
        let pending = std::mem::take(&mut links.invitations.pending);
        let before = pending.len();
        for (id, invite) in pending {
            if links.sends.get_mut(id).is_some_and(|sent| sent.phase == Phase::Announced) {
                let accepted = self.accept_invitation(peer, links, id, invite, done);
                debug_assert!(accepted.is_ok(), "{accepted:?}");
            }
        }
        before - links.invitations.pending.len()
    }
}
