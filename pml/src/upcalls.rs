//! What transports report, from within one call of their `progress`.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

use cableway_base::Rank;
use cableway_btl::{Error, MAX_HEADER, MIN_MESSAGE, Received, Token, Upcalls};

use crate::completion::Done;
use crate::engine::Engine;
use crate::kept::Content;
use crate::links::{Operation, Peer};
use crate::receive::Arrived;
use crate::wire::{Header, MATCH_LEN, Malformed, Several, is_batch, match_envelope, parse, parse_batch};

/// One call of a transport's `progress`. What completes in it is announced after it, when no lock of the engine or the
/// transport is held.
pub(crate) struct Delivery<'e> {
    pub(crate) engine: &'e Engine,
    /// Which transport.
    pub(crate) btl: usize,
    pub(crate) done: RefCell<Done>,
}

impl Upcalls for Delivery<'_> {
    #[inline]
    fn receive(&self, rank: Rank, message: Received<'_>) {
        let done = &mut *self.done.borrow_mut();
        let peer = match self.engine.known_peer(rank) {
            Some(peer) => peer,
            None => match self.heard_from(rank) {
                Some(peer) => peer,
                None => return,
            },
        };
        if peer.gone().is_some() {
            return;
        }
        if let Err(malformed) = self.dispatch(peer, &message, done) {
            self.engine.disconnect(peer, &malformed, done);
        }
    }

    fn completed(&self, token: Token, result: Result<(), Error>) {
        let done = &mut *self.done.borrow_mut();
        let (rank, operation) = ((token.0 >> 32) as Rank, token.0 as u32 as usize);
        let Some(peer) = self.engine.known_peer(rank) else { return };
        let engine = self.engine;
        engine.with_links(peer, done, |links, done| {
            let Some(operation) = links.operations.try_remove(operation) else {
                log::error!("{} completed an operation that nobody began", engine.btls[self.btl].btl.name());
                return;
            };
            // What another transport will do is refused by this one.
            let result = result.map_err(|error| {
                let btl = engine.btls[self.btl].btl.name();
                let taken_over = engine.suspend(peer, links, self.btl, &error);
                if !taken_over {
                    return error;
                }
                engine.btls[self.btl].btl.break_off(rank);
                Error::Unavailable { btl, operation: "a transfer", reason: error.to_string() }
            });
            match operation {
                Operation::SendMessage(id) => engine.left_in_place(peer, links, (id, None), result, done),
                Operation::SendFragment(id, len) => engine.left_in_place(peer, links, (id, Some(len)), result, done),
                Operation::Get { id, offset, len } => engine.get_done(peer, links, (id, offset, len), result, done),
                Operation::Put(job) => engine.put_done(peer, links, job, result, done),
                Operation::PutWhole { id, receiver, len } => {
                    engine.put_whole_done(peer, links, (id, receiver, len), &result, done);
                }
            }
            if peer.gone().is_some() {
                engine.drop_links(links);
            }
        });
    }

    fn peer_failed(&self, rank: Rank, error: Error) {
        let done = &mut *self.done.borrow_mut();
        if let Some(peer) = self.gone(rank) {
            self.engine.peer_failed(peer, self.btl, error, done);
        }
    }

    fn peer_left(&self, rank: Rank) {
        let done = &mut *self.done.borrow_mut();
        if let Some(peer) = self.gone(rank) {
            self.engine.peer_left(peer, self.btl, done);
        }
    }
}

impl Delivery<'_> {
    /// The first message of a peer.
    #[cold]
    fn heard_from(&self, rank: Rank) -> Option<&Peer> {
        let slot = &self.engine.btls[self.btl];
        slot.heard.store(true, std::sync::atomic::Ordering::Relaxed);
        match self.engine.peer(rank) {
            Ok(peer) => Some(peer),
            Err(error) => {
                // Without a link there is no answer, and nothing that could be received in order.
                log::error!("a message from peer {rank} is lost: {error}");
                None
            }
        }
    }

    /// A peer that is gone. One that was never met had connected only to see whether this process is there; receives
    /// may name it, so that it is met now.
    #[cold]
    fn gone(&self, rank: Rank) -> Option<&Peer> {
        if let Some(peer) = self.engine.known_peer(rank) {
            return Some(peer);
        }
        self.engine.check_open().ok()?;
        self.engine.peer(rank).inspect_err(|error| log::debug!("peer {rank} is gone, and was never met: {error}")).ok()
    }

    #[inline(always)]
    fn dispatch(&self, peer: &Peer, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed> {
        if let Some(words) = message.bytes().first_words()
            && let Some(envelope) = match_envelope(words)
        {
            if let Some((request, source)) = self.engine.take_awaiting(peer, &envelope) {
                self.engine.deliver_eager(request, peer, source, envelope.tag, message, done);
                return Ok(());
            }
            let arrived = Arrived { envelope, content: Content::Eager, message, header_len: MATCH_LEN };
            return self.engine.arrive(peer, &arrived, done);
        }
        self.dispatch_other(peer, message, done)
    }

    /// A message of several headers.
    fn dispatch_several(&self, peer: &Peer, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed> {
        let mut bytes = [0; MIN_MESSAGE];
        if message.bytes().len() > bytes.len() {
            return Err(Malformed::TooLong(message.bytes().len()));
        }
        let count = message.bytes().copy_to(&mut bytes);
        let several = parse_batch(&bytes[..count])?;
        let engine = self.engine;
        engine.with_links(peer, done, |links, done| match several {
            Several::Puts(mut puts) => engine.asked_for_puts(peer, links, &mut puts, done),
            Several::Stored(stored) => stored
                .iter()
                .try_for_each(|(receiver, len)| engine.stored(peer, links, receiver, (0, len), Ok(()), done)),
            Several::Finished(finished) => {
                finished.iter().try_for_each(|sender| engine.finished(peer, links, sender, Ok(()), done))
            }
        })
    }

    #[cold]
    fn dispatch_other(&self, peer: &Peer, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed> {
        peer.heard.store(peer.heard.load(Relaxed).wrapping_add(1), Relaxed);
        let mut bytes = [0; MAX_HEADER];
        let count = message.bytes().copy_to(&mut bytes);
        if is_batch(bytes[0]) {
            return self.dispatch_several(peer, message, done);
        }
        let (header, header_len) = parse(&bytes[..count], message.bytes().len())?;
        let engine = self.engine;
        let arrived = |envelope, content| Arrived { envelope, content, message, header_len };
        match header {
            Header::Match(envelope) => engine.arrive(peer, &arrived(envelope, Content::Eager), done),
            Header::Rendezvous(envelope, announced) => {
                engine.arrive(peer, &arrived(envelope, Content::announced(announced, None)), done)
            }
            Header::Get(envelope, announced, exposed) => {
                let content = Content::announced(announced, Some(exposed));
                engine.arrive(peer, &arrived(envelope, content), done)
            }
            Header::Ack(ack) => {
                engine.with_links(peer, done, |links, done| engine.acknowledged(peer, links, &ack, done))
            }
            Header::Put(put) => {
                engine.with_links(peer, done, |links, done| engine.asked_to_put(peer, links, &put, done))
            }
            Header::Fragment { receiver, offset } => engine.with_links(peer, done, |links, done| {
                engine.fragment(peer, links, (receiver, offset), message, header_len, done)
            }),
            Header::Finish { sender, result } => {
                engine.with_links(peer, done, |links, done| engine.finished(peer, links, sender, result, done))
            }
            Header::Stored { receiver, offset, len, result } => engine.with_links(peer, done, |links, done| {
                engine.stored(peer, links, receiver, (offset, len), result, done)
            }),
            Header::Credit { consumed } => engine.with_links(peer, done, |links, _| {
                links.credit.consumed(consumed).map_err(|sent| Malformed::Credit { consumed, sent })
            }),
            Header::Resume { btl, received } => {
                engine.with_links(peer, done, |links, _| engine.resumed(peer, links, btl, received))
            }
            Header::Invite(invite) => {
                engine.with_links(peer, done, |links, done| engine.invited(peer, links, invite, done))
            }
            Header::Abort { receiver, sent, reason } => {
                engine.with_links(peer, done, |links, done| engine.aborted(peer, links, (receiver, sent), reason, done))
            }
        }
    }
}
