//! From a matched message to the user's buffer.

use std::sync::atomic::Ordering;

use cableway_btl::{Received, Region, SharedBytes};
use cableway_common_cuda::{BouncePool, Direction};

use super::arrive::Arrived;
use crate::batches::Plain;
use crate::completion::{Active, Done};
use crate::copies::{Copying, Source, Then};
use crate::engine::Engine;
use crate::error::Error;
use crate::flow;
use crate::kept::{Content, Kept};
use crate::links::Peer;
use crate::request::Status;
use crate::wire::{Header, Id, MATCH_LEN};

impl Engine {
    /// Delivers an eager message within its upcall.
    #[inline(always)]
    pub(crate) fn deliver_eager(
        &self,
        mut request: Active,
        peer: &Peer,
        source: u32,
        tag: i32,
        message: &Received<'_>,
        done: &mut Done,
    ) {
        let payload = message.bytes().skip(MATCH_LEN);
        self.consume(peer, flow::cost(true, payload.len()), done);
        let status = Status { source: source as i32, tag, len: payload.len() as u64, cancelled: false };
        if request.inner().room.take_plain(payload) {
            request.succeed(status, done);
        } else {
            self.deliver_data(request, status, message, MATCH_LEN, done);
        }
    }

    /// Delivers a message within its upcall.
    pub(crate) fn deliver_arrived(
        &self,
        request: Active,
        peer: &Peer,
        source: u32,
        arrived: &Arrived<'_>,
        done: &mut Done,
    ) {
        let payload = arrived.payload();
        let mut status =
            Status { source: source as i32, tag: arrived.envelope.tag, len: payload.len() as u64, cancelled: false };
        match &arrived.content {
            Content::Eager => self.consume(peer, flow::cost(true, payload.len()), done),
            Content::Announced(offer) => {
                status.len = offer.announced.len;
                if payload.is_empty() {
                    self.begin_receive(request, peer, (status, &arrived.envelope), offer, done);
                    return;
                }
                self.consume(peer, flow::cost(false, payload.len()), done);
                self.confirm(peer, offer.announced.sender, done);
            }
        }
        self.deliver_data(request, status, arrived.message, arrived.header_len, done);
    }

    #[inline(never)]
    fn deliver_data(
        &self,
        mut request: Active,
        status: Status,
        message: &Received<'_>,
        header_len: usize,
        done: &mut Done,
    ) {
        if request.is_on_device()
            && let Some(held) = self.hold(message, header_len)
        {
            self.deliver_to_device(request, status, held, done);
        } else {
            self.deliver_now(request, status, message.bytes().skip(header_len), done);
        }
    }

    /// Delivers a message that was kept.
    pub(crate) fn deliver_kept(&self, mut request: Active, peer: &Peer, source: u32, kept: Kept, done: &mut Done) {
        let status = Status { source: source as i32, tag: kept.envelope.tag, len: kept.len(), cancelled: false };
        self.consume(peer, kept.cost(), done);
        if let Content::Announced(offer) = &kept.content {
            if kept.payload.is_empty() {
                self.begin_receive(request, peer, (status, &kept.envelope), offer, done);
                return;
            }
            self.confirm(peer, offer.announced.sender, done);
        }
        if request.is_on_device() && !kept.payload.is_empty() {
            // Boxed, because it must not move while the device copies from it.
            let kept = Box::new(kept);
            let held = Held { address: kept.payload.as_ptr(), source: Source::Kept { _message: kept } };
            self.deliver_to_device(request, status, held, done);
        } else {
            self.deliver_now(request, status, SharedBytes::from_private(&kept.payload), done);
        }
    }

    /// Copies the message; if to a device, waits for that.
    #[inline]
    fn deliver_now(&self, mut request: Active, status: Status, payload: SharedBytes<'_>, done: &mut Done) {
        let room = &mut request.inner().room;
        let space = room.len();
        let len = space.min(payload.len() as u64) as usize;
        match room.fill(payload, len) {
            Ok(()) if len == payload.len() => request.succeed(status, done),
            Ok(()) => request.complete(status, truncated(&status, space), done),
            Err(error) => request.complete(status, Some(error), done),
        }
    }

    /// Has the device copy the message; the request completes once it has.
    #[cold]
    fn deliver_to_device(&self, mut request: Active, status: Status, held: Held, done: &mut Done) {
        self.note_message(true);
        let room = &mut request.inner().room;
        let space = room.len();
        let len = space.min(status.len) as usize;
        let truncated = truncated(&status, space);
        let Held { address: from, source } = held;
        if let Some(Region { address: to, location: at, order, .. }) = room.region(len, &self.devices) {
            let (direction, page_locked) = (Direction::HostToDevice, source.page_locked());
            let then = Then::Received { request, status, truncated, source };
            let copy = Plain { to, from, len, direction, at, order, page_locked, then };
            // SAFETY: the source keeps the bytes readable; the buffer is the request's until that completes.
            return unsafe { self.gather_copy(copy) };
        }
        // SAFETY: the source keeps the bytes readable and goes where the completion goes.
        match unsafe { room.start_fill(from, len, &self.devices) } {
            Ok(completion) => {
                let then = Then::Received { request, status, truncated, source };
                self.start_copy(Copying { completion, then, bytes: len as u64 });
            }
            Err(error) => request.complete(status, Some(error), done),
        }
    }

    /// Keeps a message's payload beyond its upcall, for a device to copy from: in the transport's memory if that can
    /// wait, else in ours. None if there is no such memory now, or nothing to be kept: what there is must be copied at
    /// once.
    pub(crate) fn hold(&self, message: &Received<'_>, header_len: usize) -> Option<Held> {
        let payload = message.bytes().skip(header_len);
        if payload.is_empty() {
            return None;
        }
        if let Some(message) = message.retain() {
            let address = message.bytes().skip(header_len).as_ptr();
            return Some(Held { address, source: Source::Retained { _message: message } });
        }
        let fits = |pool: &&BouncePool| payload.len() <= pool.chunk_size();
        let mut buffer = [&self.small_bounce, &self.bounce].into_iter().filter(fits).find_map(BouncePool::take)?;
        payload.copy_to(&mut buffer);
        Some(Held { address: buffer.as_mut_ptr(), source: Source::Bounce { _buffer: buffer } })
    }

    /// Tells the sender of a message that came with its data that it was matched.
    fn confirm(&self, peer: &Peer, sender: Id, done: &mut Done) {
        self.with_links(peer, done, |links, _| links.control(&Header::Finish { sender, result: Ok(()) }));
    }

    /// Gives the sender its credit back, in instalments of half the window.
    #[inline(always)]
    pub(crate) fn consume(&self, peer: &Peer, cost: u64, done: &mut Done) {
        let consumed = peer.consumed.add(cost);
        if consumed.wrapping_sub(peer.credited.load(Ordering::Relaxed)) >= self.instalment {
            self.give_credit(peer, done);
        }
    }

    #[cold]
    fn give_credit(&self, peer: &Peer, done: &mut Done) {
        self.with_links(peer, done, |links, _| {
            let consumed = peer.consumed.get();
            peer.credited.store(consumed, Ordering::Relaxed);
            links.control(&Header::Credit { consumed });
        });
    }
}

/// Bytes that stay where they are as long as `source` lives.
pub(crate) struct Held {
    pub(crate) address: *const u8,
    pub(crate) source: Source,
}

impl Active {
    #[inline]
    pub(crate) fn is_on_device(&mut self) -> bool {
        self.inner().room.is_on_device()
    }
}

/// The error of a receive that the message was too long for.
#[inline]
pub(crate) fn truncated(status: &Status, room: u64) -> Option<Error> {
    let &Status { source, tag, len, .. } = status;
    (len > room).then_some(Error::Truncated { source_rank: source, tag, sent: len, room })
}
