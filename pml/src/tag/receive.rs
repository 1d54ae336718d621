//! The calls that receive.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::arrive::{cannot_wait, deliver_waiting};
use super::communicator::Communicator;
use super::engine::Engine;
use super::request::{Receive, Request};
use super::wait::AbortUnlessComplete;
use crate::buffer::Buffer;
use crate::core::Done;
use crate::error::Error;
use crate::status::{PROC_NULL, Status};

impl Engine {
    /// Starts a receive from rank `source` or [`ANY`](crate::ANY) with `tag` or [`ANY`](crate::ANY).
    ///
    /// Once a process of the communicator has failed, receives from it and from any source fail, unless their message
    /// is here already. After a process has left, only receives that name it fail. A receive from any source then fails
    /// in a call that waits, once every other process is gone, unless this one has ever sent to itself.
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
        let on_device = receive.buffer().on_device().copied().filter(|_| !buffer.order().is_settled());
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
        // From now on a thread that cancels the request may read its atomics, but only under this lock.
        // SAFETY: the caller keeps the request valid.
        let request = unsafe { request.as_ref() };
        request.context().store(on.context(), Ordering::Relaxed);
        let key = matching.matcher.post(pattern, receive);
        request.note_posted(key);
        drop(matching);
        if let Some(location) = on_device {
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
        // SAFETY: the request is new, and this frame, which holds the buffer, does not return before it is complete.
        unsafe { self.irecv(on, source, tag, buffer, request.started())? };
        self.wait_until(|| request.is_complete());
        request.into_result()
    }

    /// Cancels a receive that is not matched: it completes with a status that says so. Otherwise, and for sends, it has
    /// no effect. Returns whether the receive was cancelled. A receive that ended because no process was left to send
    /// is cancelled like a waiting one.
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
        let cancelled = {
            let mut matching = on.matching.lock();
            // A stale key, of a send or of a matched receive, finds nothing: numbers are not reused.
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
