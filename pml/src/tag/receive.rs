//! The calls that receive.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::arrive::{cannot_wait, deliver_waiting};
use super::communicator::Communicator;
use super::engine::Engine;
use super::invite;
use super::request::{Receive, Request};
use super::wait::AbortUnlessComplete;
use crate::buffer::Buffer;
use crate::core::Done;
use crate::error::Error;
use crate::status::{PROC_NULL, Status};

impl Engine {
    /// Starts a receive from rank `source` or [`ANY`](crate::ANY) with `tag` or [`ANY`](crate::ANY).
    ///
    /// Once a process of the communicator has failed, a receive that could only be satisfied by it, and one from any
    /// source, fails unless its message is here already. Of one that has left, only receives that name it fail; one from
    /// any source fails in a call that waits, once every other process is gone and unless this one has ever sent to
    /// itself.
    ///
    /// # Safety
    /// The request is not active; it and the buffer stay valid, and the buffer untouched, until the request completes.
    ///
    /// # Errors
    /// As `isend`.
    #[inline(always)]
    pub unsafe fn irecv(
        &self,
        on: &Communicator,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
        request: *const Request,
    ) -> Result<(), Error> {
        self.core().check_open()?;
        let Some(request) = NonNull::new(request.cast_mut()) else {
            return Err(Error::BadRequest { reason: "it is null" });
        };
        if source == PROC_NULL {
            // SAFETY: the caller's promise.
            complete_null(unsafe { Receive::new(request) });
            return Ok(());
        }
        let pattern = on.pattern(source, tag)?;
        buffer.packed_len()?;
        // SAFETY: the caller's promise.
        let mut receive = unsafe { Receive::new(request) };
        // SAFETY: the caller's promise lasts until the operation is complete.
        unsafe { receive.buffer().renew(buffer, self.devices()) };
        let on_device = receive.buffer().on_device().copied();
        let expected = on_device.and_then(|_| invite::expect(self, on, source, request));
        if expected.is_some() {
            // An invited sender stores before anything is matched.
            receive.begin_transfer();
        }
        let mut matching = on.matching.lock();
        if let Some((source, _, kept)) = matching.matcher.take(pattern) {
            drop(matching);
            let mut done = Done::default();
            deliver_waiting(self, on, (receive, source), kept, &mut done);
            self.protocols.shared.copies.set_out(self.core());
            done.run();
            return Ok(());
        }
        if let Some(error) = cannot_wait(self, on, &matching, source) {
            drop(matching);
            receive.retract();
            return Err(error);
        }
        // The request's atomics may be looked at by whoever cancels it, from now on and under this lock only.
        // SAFETY: the caller keeps the request valid.
        let request = unsafe { request.as_ref() };
        request.context().store(on.context(), Ordering::Relaxed);
        let key = matching.matcher.post(pattern, receive);
        request.note_posted(key);
        let Some(location) = on_device else { return Ok(()) };
        let next = expected.and_then(|_| matching.matcher.next_goes_to(pattern));
        drop(matching);
        let invited = expected.is_some_and(|expected| {
            // SAFETY: the caller keeps the buffer to the receive until that completes.
            unsafe { invite::invite(self, on, (pattern, key, expected), next, (buffer, location)) }
        });
        if !invited {
            self.core().orders.note_posted(&location);
        }
        Ok(())
    }

    /// Receives and waits.
    ///
    /// # Safety
    /// The buffer is valid for writes.
    ///
    /// # Errors
    /// Those of the operation.
    #[inline]
    pub unsafe fn recv(&self, on: &Communicator, source: i32, tag: i32, buffer: Buffer<'_>) -> Result<Status, Error> {
        let request = AbortUnlessComplete::new();
        // SAFETY: the request is new, and this frame, which lends the buffer, is not left before it is complete.
        unsafe { self.irecv(on, source, tag, buffer, request.started())? };
        self.wait_until(|| request.is_complete());
        request.into_result()
    }

    /// Cancels a receive if nothing has matched it yet: it completes, its status says so. Otherwise, and for sends,
    /// nothing happens; the request completes as it would have. Returns whether it was cancelled. A receive that ended
    /// because nobody was left who could send is cancelled as if it waited still.
    ///
    /// # Safety
    /// The request was started on this engine and is valid.
    pub unsafe fn cancel(&self, request: *const Request) -> bool {
        // SAFETY: the caller's promise.
        let Some(request) = (unsafe { request.as_ref() }) else { return false };
        if !request.is_active() {
            return request.forgive_absence();
        }
        if self.is_forked() {
            self.end_in_child(&[request]);
            return false;
        }
        let context = request.context().load(Ordering::Relaxed);
        let Some(on) = self.registry.read(|registry| registry.get(context).cloned()) else { return false };
        if !invite::may_cancel(self, request) {
            return false;
        }
        let cancelled = {
            let mut matching = on.matching.lock();
            // A key that is stale, because the request is a send or was matched, names nothing: numbers are not reused.
            let key = request.posted();
            matching.matcher.cancel(key, |receive| std::ptr::eq(receive.request(), request))
        };
        let Some(receive) = cancelled else { return false };
        let mut done = Done::default();
        receive.complete(Status { cancelled: true, ..Status::EMPTY }, None, &mut done);
        done.run();
        true
    }
}

/// Ends a receive from a process that does not exist.
fn complete_null(receive: Receive) {
    let mut done = Done::default();
    receive.complete(Status::EMPTY, None, &mut done);
    done.run();
}
