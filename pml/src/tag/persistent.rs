//! Persistent requests: described once and started many times.

use std::sync::Arc;

use super::communicator::Communicator;
use super::engine::Engine;
use super::request::Request;
use super::send::SendMode;
use crate::buffer::{Buffer, OwnedBuffer};
use crate::core::Done;
use crate::error::Error;
use crate::status::{Outcome, PROC_NULL, Status};

/// The operation that each start begins.
struct Operation {
    communicator: Arc<Communicator>,
    peer: i32,
    tag: i32,
    buffer: OwnedBuffer,
    action: Action,
}

enum Action {
    Send(SendMode),
    Receive,
}

impl Engine {
    /// Describes a send that [`start`](Self::start) begins, again and again.
    ///
    /// # Safety
    /// The request is not active. At each start, as [`isend`](Self::isend).
    ///
    /// # Errors
    /// A bad rank or tag.
    pub unsafe fn send_init(
        &self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
        mode: &SendMode,
        request: &Request,
    ) -> Result<(), Error> {
        if dest != PROC_NULL {
            to.destination(dest, tag)?;
        }
        let (communicator, buffer, action) = (to.clone(), buffer.to_owned(), Action::Send(mode.clone()));
        // SAFETY: the caller promises that the request is not active, so the host owns it and lends it to this call.
        *unsafe { request.persistent() } = Some(Arc::new(Operation { communicator, peer: dest, tag, buffer, action }));
        Ok(())
    }

    /// Describes a receive that [`start`](Self::start) begins, again and again.
    ///
    /// # Safety
    /// The request is not active. At each start, as [`irecv`](Self::irecv).
    ///
    /// # Errors
    /// A bad rank or tag.
    pub unsafe fn recv_init(
        &self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
        request: &Request,
    ) -> Result<(), Error> {
        if source != PROC_NULL {
            on.pattern(source, tag)?;
        }
        let (communicator, buffer) = (on.clone(), buffer.to_owned());
        // SAFETY: as in `send_init`.
        *unsafe { request.persistent() } =
            Some(Arc::new(Operation { communicator, peer: source, tag, buffer, action: Action::Receive }));
        Ok(())
    }

    /// Starts the operation of a persistent request. Unlike with `isend`, the request always becomes complete, and its
    /// hook is always called.
    ///
    /// # Safety
    /// The same as where the operation was described.
    ///
    /// # Errors
    /// The request is active or not persistent, or as `isend`.
    pub unsafe fn start(&self, request: *const Request) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let Some(known) = (unsafe { request.as_ref() }) else {
            return Err(Error::BadRequest { reason: "it is null" });
        };
        if known.is_active() {
            return Err(Error::BadRequest { reason: "it is active" });
        }
        // SAFETY: the request is not active, so the host owns it and lends it to this call.
        let operation = unsafe { known.persistent() }.clone();
        let operation = operation.and_then(|operation| operation.downcast::<Operation>().ok());
        let operation = operation.ok_or(Error::BadRequest { reason: "it is not persistent" })?;
        let Operation { communicator, peer, tag, buffer, action } = &*operation;
        match action {
            Action::Receive => {
                // SAFETY: the caller's promise.
                unsafe { self.irecv(communicator, *peer, *tag, buffer.borrow(), request) }
            }
            Action::Send(mode) => {
                // SAFETY: the caller's promise.
                let outcome = unsafe { self.isend(communicator, *peer, *tag, buffer.borrow(), mode, request)? };
                if outcome == Outcome::Complete {
                    let mut done = Done::default();
                    // SAFETY: the request was not used, so it is still inactive.
                    unsafe { Request::activate(known.into()) }.complete(Status::EMPTY, None, &mut done);
                    done.run();
                }
                Ok(())
            }
        }
    }
}
