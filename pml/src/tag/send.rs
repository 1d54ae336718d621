//! The calls that send.

use std::sync::Arc;

use cableway_common_cuda::Location;

use super::attached::AttachedBuffer;
use super::buffered;
use super::communicator::Communicator;
use super::engine::Engine;
use super::request::Request;
use super::start_send::{FastPath, SendArguments, leaves_at_once, meet_and_send, parts_leave_at_once, start};
use super::wait::AbortUnlessComplete;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::{Outcome, PROC_NULL, Status};
#[cfg(doc)]
use crate::wire::MATCH_LEN;

/// MPI's send modes.
#[derive(Clone, Default)]
pub enum SendMode {
    /// Complete when the buffer can be reused.
    #[default]
    Standard,
    /// As standard; the caller knows that the receiver has posted.
    Ready,
    /// Complete when the receiver has matched the message.
    Synchronous,
    /// Complete at once: a message that cannot leave now is copied into the attached buffer.
    Buffered(Arc<AttachedBuffer>),
}

impl Engine {
    /// Sends a small message at once, without a request, if the transport takes it. Otherwise it has no effect, and the
    /// caller continues with [`isend_after`](Self::isend_after). Not for synchronous sends.
    ///
    /// # Safety
    /// The buffer is valid for reads.
    ///
    /// # Errors
    /// A bad rank or tag, or the peer failed.
    #[inline(always)]
    pub unsafe fn send_now(
        &self,
        to: &Communicator,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<FastPath, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match leaves_at_once(self, to, dest, tag, buffer) {
                FastPath::NotTaken(None) => meet_and_send(self, to, dest, tag, buffer),
                tried => Ok(tried),
            }
        }
    }

    /// Sends a small message of two parts in host memory at once, if the transport takes it. The first [`MATCH_LEN`]
    /// bytes of `begin` are room for a header, and any content of them is lost. Otherwise returns false, and has no other
    /// effect.
    #[inline]
    pub(crate) fn send_parts_now(&self, to: &Communicator, dest: i32, tag: i32, begin: &mut [u8], data: &[u8]) -> bool {
        parts_leave_at_once(self, to, dest, tag, begin, data)
    }

    /// Starts a send of `buffer` to rank `dest`.
    ///
    /// # Safety
    /// The request is not active; it and the buffer stay valid, and the buffer unwritten, until the request completes,
    /// or, if the answer is [`Outcome::Complete`], until the call returns.
    ///
    /// # Errors
    /// The operation could not start: a bad rank or tag, a failed peer, no space in the attached buffer. The request is
    /// then not active. Later failures are reported in the request.
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
            match unsafe { leaves_at_once(self, to, dest, tag, buffer) } {
                FastPath::Sent => return Ok(Outcome::Complete),
                FastPath::NotTaken(found) => location = found,
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.isend_slow_path(to, dest, tag, (buffer, location), mode, request) }
    }

    /// Starts a send as [`isend`](Self::isend) does, after [`send_now`](Self::send_now) did not send the message but
    /// returned the location of its buffer.
    ///
    /// # Safety
    /// As [`isend`](Self::isend). The program has not run since the location was found, so it is still right.
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
                Some(_) => self.isend_slow_path(to, dest, tag, (buffer, location), mode, request),
                None => self.isend(to, dest, tag, buffer, mode, request),
            }
        }
    }

    /// Sends by the slow path, which any message can take.
    ///
    /// # Safety
    /// As [`isend_after`](Self::isend_after).
    unsafe fn isend_slow_path(
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
        self.core().check_open()?;
        if let SendMode::Buffered(attached) = mode {
            to.destination(dest, tag)?;
            // SAFETY: the caller's promise covers the buffer during the call.
            unsafe { buffered::send(self, to, dest, tag, buffer, attached)? };
            return Ok(Outcome::Complete);
        }
        let synchronous = matches!(mode, SendMode::Synchronous);
        // SAFETY: the caller's promise.
        unsafe { start(self, to, SendArguments { dest, tag, buffer, location, synchronous }, request) }
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
            match unsafe { leaves_at_once(self, to, dest, tag, buffer) } {
                FastPath::Sent => return Ok(()),
                FastPath::NotTaken(found) => location = found,
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
        // SAFETY: the request is new, and this frame, which holds the buffer, does not return before it is complete.
        match unsafe { self.isend_slow_path(to, dest, tag, (buffer, location), mode, request.started())? } {
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
