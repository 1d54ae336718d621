//! Sending.
//!
//! A small host message leaves at once and needs no request ([`Engine::send_now`]). Every other becomes a
//! [`SendTransfer`] in its peer's table: it waits for the link, for the device's copy, for the receiver's answer, or for
//! its fragments to leave.

mod answers;
mod fetches;
mod put;
mod start;
mod stream;
mod transfer;

pub(crate) use fetches::Fetches;
pub(crate) use put::PutJob;
pub(crate) use start::token;
pub(crate) use transfer::{Phase, SendTransfer};

use std::ptr::NonNull;
use std::sync::Arc;

use cableway_btl::Sent;
use cableway_common_cuda::Location;

use crate::buffer::Buffer;
use crate::buffered::AttachedBuffer;
use crate::communicator::Communicator;
use crate::completion::{Active, Done};
use crate::engine::Engine;
use crate::error::Error;
use crate::flow;
use crate::request::{ANY, Outcome, PROC_NULL, Request, Status};
use crate::wait::AbortUnlessComplete;
use crate::wire::{self, Envelope};

/// MPI's send modes.
#[derive(Clone, Default)]
pub enum SendMode {
    /// Complete when the buffer can be reused.
    #[default]
    Standard,
    /// As standard; the receiver is known to have posted.
    Ready,
    /// Complete when the receiver has matched the message.
    Synchronous,
    /// Complete at once: what cannot leave now is copied into the attached buffer.
    Buffered(Arc<AttachedBuffer>),
}

/// Whether a message has left by the short way ([`Engine::send_now`]).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// It has, and its buffer can be reused.
    Left,
    /// Nothing happened. Where its buffer is, if that was asked on the way: for
    /// [`isend_after`](Engine::isend_after), in the same call of the program's.
    Not(Option<Location>),
}

impl Engine {
    /// Sends at once if that needs no request: small, and the transport has room. Else nothing happened, and
    /// [`isend_after`](Self::isend_after) is to be called. Not for synchronous sends.
    ///
    /// # Safety
    /// The buffer is valid for reads.
    ///
    /// # Errors
    /// A bad rank or tag, or the peer failed.
    #[inline(always)]
    pub unsafe fn send_now(&self, to: &Communicator, dest: i32, tag: i32, buffer: Buffer<'_>) -> Result<Short, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.leaves_at_once(to, dest, tag, buffer) {
                Short::Not(None) => self.meet_and_send(to, dest, tag, buffer),
                tried => Ok(tried),
            }
        }
    }

    /// The short way, in which nothing goes wrong: whatever is not as usual is left to the long one, untouched.
    ///
    /// # Safety
    /// As [`send_now`](Self::send_now).
    #[inline(always)]
    unsafe fn leaves_at_once(&self, to: &Communicator, dest: i32, tag: i32, buffer: Buffer<'_>) -> Short {
        const NOT: Short = Short::Not(None);
        let Some(&process) = to.group().get(dest as usize) else { return NOT };
        let (Some(peer), Some((address, len))) = (self.known_peer(process), buffer.contiguous()) else { return NOT };
        if tag == ANY || !self.is_open() || peer.gone().is_some() {
            return NOT;
        }
        let cost = flow::cost(true, len as usize);
        let mut links = peer.links.lock();
        let links = &mut *links;
        let Some(link) = links.active.first_mut() else { return NOT };
        let whole = wire::MATCH_LEN as u64 + len;
        let fits = whole <= link.capabilities().inline_limit as u64;
        // A peer with work in its queues is listed, some others too; nothing may overtake what waits there.
        if !fits || links.listed || !links.credit.covers(cost) {
            return NOT;
        }
        let len = len as usize;
        let location = self.devices.classify(address, len);
        if location.on_device() {
            return Short::Not(Some(location));
        }
        let member = to.member(dest as u32);
        let seq = member.next_seq();
        let header = wire::match_bytes(&Envelope { context: to.context(), epoch: member.epoch, tag, seq });
        let payload = if len == 0 {
            &[]
        } else {
            // SAFETY: host memory that the caller says is valid for reads.
            unsafe { std::slice::from_raw_parts(address, len) }
        };
        // A link that fails answers the same again on the long way, which deals with it.
        let sent = matches!(link.endpoint.send_inline(&header, payload), Ok(Sent::Done));
        if sent {
            link.carried = true;
            member.advance_seq(seq);
            links.credit.take(cost);
            peer.counters.sends_eager.add_exclusively(1);
            peer.counters.bytes_eager.add_exclusively(len as u64);
            return Short::Left;
        }
        Short::Not(Some(location))
    }

    /// What is wrong with a send that did not go the short way; if it is only that the peer was not met yet, the send.
    ///
    /// # Safety
    /// As [`send_now`](Self::send_now).
    #[inline(never)]
    unsafe fn meet_and_send(&self, to: &Communicator, dest: i32, tag: i32, buffer: Buffer<'_>) -> Result<Short, Error> {
        if dest == PROC_NULL {
            return Ok(Short::Left);
        }
        self.check_open()?;
        let process = to.destination(dest, tag)?;
        let known = self.known_peer(process).is_some();
        self.peer(process)?.check()?;
        if known {
            return Ok(Short::Not(None));
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { self.leaves_at_once(to, dest, tag, buffer) })
    }

    /// Starts a send of `buffer` to rank `dest`.
    ///
    /// # Safety
    /// The request is not active; it and the buffer stay valid, and the buffer unwritten, until the request completes,
    /// or, if the answer is [`Outcome::Complete`], until the call returns.
    ///
    /// # Errors
    /// The operation could not begin: a bad rank or tag, a failed peer, no room in the attached buffer. The request is
    /// not active then. Later failures are found in the request.
    #[inline]
    pub unsafe fn isend(
        &self,
        to: &Communicator,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
        mode: &SendMode,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        let mut location = None;
        if !matches!(mode, SendMode::Synchronous) {
            // SAFETY: the caller's promise.
            match unsafe { self.leaves_at_once(to, dest, tag, buffer) } {
                Short::Left => return Ok(Outcome::Complete),
                Short::Not(found) => location = found,
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.isend_slowly(to, dest, tag, (buffer, location), mode, request) }
    }

    /// As [`isend`](Self::isend), of a message that did not leave by [`send_now`](Self::send_now) if that answered where
    /// its buffer is.
    ///
    /// # Safety
    /// As [`isend`](Self::isend); the program has not run since the location was found, so that it is right still.
    ///
    /// # Errors
    /// As [`isend`](Self::isend).
    pub unsafe fn isend_after(
        &self,
        to: &Communicator,
        dest: i32,
        tag: i32,
        (buffer, location): (Buffer<'_>, Option<Location>),
        mode: &SendMode,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match location {
                Some(_) => self.isend_slowly(to, dest, tag, (buffer, location), mode, request),
                None => self.isend(to, dest, tag, buffer, mode, request),
            }
        }
    }

    /// The long way, which any message can go.
    ///
    /// # Safety
    /// As [`isend_after`](Self::isend_after).
    unsafe fn isend_slowly(
        &self,
        to: &Communicator,
        dest: i32,
        tag: i32,
        (buffer, location): (Buffer<'_>, Option<Location>),
        mode: &SendMode,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        if dest == PROC_NULL {
            return Ok(Outcome::Complete);
        }
        self.check_open()?;
        let process = to.destination(dest, tag)?;
        if let SendMode::Buffered(attached) = mode {
            // SAFETY: the caller's promise covers the buffer during the call.
            unsafe { self.send_buffered(to, dest, tag, buffer, attached)? };
            return Ok(Outcome::Complete);
        }
        let peer = self.peer(process)?;
        let location = location.unwrap_or_else(|| buffer.classify(&self.devices));
        buffer.packed_len()?;
        // SAFETY: the caller's promise lasts until the operation is complete, and with it the convertor's use.
        let convertor = unsafe { buffer.convertor_to_send(location, &self.devices) };
        let Some(request) = NonNull::new(request.cast_mut()) else {
            return Err(Error::BadRequest { reason: "it is null" });
        };
        let begun = self.devices.moment();
        let mut done = Done::default();
        let synchronous = matches!(mode, SendMode::Synchronous);
        let outcome = self.with_links(peer, &mut done, |links, done| {
            peer.check()?;
            let member = to.member(dest as u32);
            let seq = member.next_seq();
            member.advance_seq(seq);
            let envelope = Envelope { context: to.context(), epoch: member.epoch, tag, seq };
            // SAFETY: the caller says that the request is not active and stays valid.
            let request = unsafe { Active::new(request) };
            let transfer = SendTransfer::new(request, convertor, begun, envelope, synchronous);
            Ok(self.start_send(peer, links, transfer, done))
        });
        if location.on_device() {
            self.set_out_copies();
        }
        done.run();
        outcome
    }

    /// Sends and waits.
    ///
    /// # Safety
    /// The buffer is valid for reads.
    ///
    /// # Errors
    /// Those of the operation.
    #[inline]
    pub unsafe fn send(
        &self,
        to: &Communicator,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
        mode: &SendMode,
    ) -> Result<(), Error> {
        let mut location = None;
        if !matches!(mode, SendMode::Synchronous) {
            // SAFETY: the caller's promise.
            match unsafe { self.leaves_at_once(to, dest, tag, buffer) } {
                Short::Left => return Ok(()),
                Short::Not(found) => location = found,
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.send_slowly(to, dest, tag, (buffer, location), mode) }
    }

    /// # Safety
    /// As [`send`](Self::send).
    #[inline(never)]
    unsafe fn send_slowly(
        &self,
        to: &Communicator,
        dest: i32,
        tag: i32,
        (buffer, location): (Buffer<'_>, Option<Location>),
        mode: &SendMode,
    ) -> Result<(), Error> {
        let request = AbortUnlessComplete::new();
        // SAFETY: the request is new, and this frame, which lends the buffer, is not left before it is complete.
        match unsafe { self.isend_slowly(to, dest, tag, (buffer, location), mode, request.started())? } {
            Outcome::Complete => {
                request.unused();
                Ok(())
            }
            Outcome::Started => {
                self.wait_until(|| request.is_complete());
                request.into_result().map(|_: Status| ())
            }
        }
    }
}
