//! Small messages between the sides of prepared operations.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::Outcome;
use crate::tag::{Communicator, Engine, Request, SendMode};

/// A small message under way, with its bytes. A receive that is dropped is cancelled.
pub(super) struct Note {
    engine: Arc<Engine>,
    inner: NonNull<Inner>,
}

struct Inner {
    request: Request,
    bytes: Box<[u8]>,
    /// A complete send that did not use the request.
    left: bool,
    /// Stays in the engine meanwhile.
    communicator: Arc<Communicator>,
}

// SAFETY: the engine accesses an active request and its bytes by its own rules from any thread; this type accesses the
// bytes only once the request is complete.
unsafe impl Send for Note {}
// SAFETY: as above; shared access reads only.
unsafe impl Sync for Note {}

impl Note {
    fn new(engine: &Arc<Engine>, communicator: &Arc<Communicator>, bytes: Box<[u8]>) -> Note {
        let inner = Inner { request: Request::new(), bytes, left: false, communicator: communicator.clone() };
        Note { engine: engine.clone(), inner: NonNull::from(Box::leak(Box::new(inner))) }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The peer is gone.
    pub(super) fn send(
        engine: &Arc<Engine>,
        to: &Arc<Communicator>,
        (dest, tag): (i32, i32),
        bytes: &[u8],
    ) -> Result<Note, Error> {
        let mut note = Note::new(engine, to, bytes.into());
        // SAFETY: this function owns the new allocation.
        let inner = unsafe { note.inner.as_mut() };
        let buffer = Buffer::bytes(inner.bytes.as_ptr(), inner.bytes.len() as u64);
        let request = &raw const inner.request;
        // SAFETY: the allocation lives until the request is complete.
        let sent = unsafe { engine.isend(to, dest, tag, buffer, &SendMode::Standard, request) }?;
        inner.left = sent == Outcome::Complete;
        Ok(note)
    }

    /// Receives at most `len` bytes.
    ///
    /// # Errors
    /// The peer is gone.
    pub(super) fn receive(
        engine: &Arc<Engine>,
        on: &Arc<Communicator>,
        (source, tag): (i32, i32),
        len: usize,
    ) -> Result<Note, Error> {
        let mut note = Note::new(engine, on, vec![0; len].into());
        // SAFETY: this function owns the new allocation.
        let inner = unsafe { note.inner.as_mut() };
        let buffer = Buffer::bytes(inner.bytes.as_mut_ptr(), len as u64);
        let request = &raw const inner.request;
        // SAFETY: the allocation lives until the request is complete.
        unsafe { engine.irecv(on, source, tag, buffer, request) }?;
        Ok(note)
    }

    fn inner(&self) -> &Inner {
        // SAFETY: allocated until `drop`. The engine accesses the request by its atomics, and the bytes through their own
        // pointer.
        unsafe { self.inner.as_ref() }
    }

    /// Returns whether the message has been sent or received, or has failed.
    pub(super) fn is_over(&self) -> bool {
        let inner = self.inner();
        inner.left || inner.request.is_complete()
    }

    /// Returns the received bytes once the message is over.
    pub(super) fn received(&self) -> Option<Result<&[u8], Error>> {
        let inner = self.inner();
        if !inner.request.is_complete() {
            return None;
        }
        Some(inner.request.result().map(|status| {
            let len = usize::try_from(status.len).unwrap_or(usize::MAX).min(inner.bytes.len());
            &inner.bytes[..len]
        }))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if self.inner().request.is_active() {
            // SAFETY: the request was started on this engine and is valid.
            unsafe { self.engine.cancel(&raw const self.inner().request) };
        }
        if self.inner().request.is_active() {
            // A message is coming or leaving, which uses the memory.
            log::debug!("a message of a prepared operation on context {} is left", self.inner().communicator.context());
            return;
        }
        // SAFETY: allocated by `new`, and the engine no longer uses it.
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}
