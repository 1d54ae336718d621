//! Small messages with their bytes.

use std::ptr::NonNull;

use cableway_pml::{Buffer, Communicator, Engine, Error, Outcome, Request, SendMode, Status};

/// A message of at most `N` bytes under way. One that is dropped while the engine uses it is leaked.
pub(crate) struct Note<const N: usize>(NonNull<Inner<N>>);

struct Inner<const N: usize> {
    request: Request,
    bytes: [u8; N],
    /// A send that was complete at once does not use the request.
    left: bool,
}

// SAFETY: the engine accesses an active request and its bytes by its own rules from any thread. This type accesses the
// bytes only once the request is complete.
unsafe impl<const N: usize> Send for Note<N> {}
// SAFETY: as above. References only look at the request, which any thread may do, and at bytes that nobody writes any more.
unsafe impl<const N: usize> Sync for Note<N> {}

/// What came of a receive.
pub(super) enum Received<const N: usize> {
    /// Nothing yet.
    Nothing,
    /// The whole message.
    Bytes([u8; N]),
    /// A message of another length, or the receive was cancelled: the sender has failed.
    Failure,
    /// No message comes.
    Gone(Error),
}

impl<const N: usize> Note<N> {
    fn new(bytes: [u8; N]) -> Note<N> {
        Note(NonNull::from(Box::leak(Box::new(Inner { request: Request::new(), bytes, left: false }))))
    }

    /// Sends bytes, or a message without data in place of them. With [`SendMode::Synchronous`] it fails if the receiver
    /// refuses it.
    pub(crate) fn send(
        (engine, on): (&Engine, &Communicator),
        (to, tag): (u32, i32),
        bytes: Option<[u8; N]>,
        mode: &SendMode,
    ) -> Result<Note<N>, Error> {
        let len = if bytes.is_some() { N as u64 } else { 0 };
        let mut note = Note::new(bytes.unwrap_or([0; N]));
        // SAFETY: nobody else knows the new allocation.
        let inner = unsafe { note.0.as_mut() };
        let (buffer, request) = (Buffer::bytes(inner.bytes.as_ptr(), len).in_host(), &raw const inner.request);
        // SAFETY: the allocation lives until the request is complete.
        let sent = unsafe { engine.isend(on, to as i32, tag, buffer, mode, request) };
        inner.left = !matches!(sent, Ok(Outcome::Started));
        sent.map(|_| note)
    }

    /// Receives a message.
    pub(super) fn receive((engine, on): (&Engine, &Communicator), (from, tag): (u32, i32)) -> Result<Note<N>, Error> {
        let mut note = Note::new([0; N]);
        // SAFETY: nobody else knows the new allocation.
        let inner = unsafe { note.0.as_mut() };
        let (buffer, request) = (Buffer::bytes(inner.bytes.as_mut_ptr(), N as u64).in_host(), &raw const inner.request);
        // SAFETY: the allocation lives until the request is complete.
        let received = unsafe { engine.irecv(on, from as i32, tag, buffer, request) };
        inner.left = received.is_err();
        received.map(|_| note)
    }

    fn inner(&self) -> &Inner<N> {
        // SAFETY: allocated until `drop`. Meanwhile the engine writes the bytes through a pointer of its own, and they are
        // read only after that.
        unsafe { self.0.as_ref() }
    }

    /// Checks whether the engine does not use the bytes any more.
    pub(crate) fn is_over(&self) -> bool {
        let inner = self.inner();
        inner.left || inner.request.is_complete()
    }

    /// Returns the error that ended it.
    pub(crate) fn failure(&self) -> Option<Error> {
        let inner = self.inner();
        if inner.left || !inner.request.is_complete() { None } else { inner.request.result().err() }
    }

    /// Returns what a receive has got.
    pub(super) fn received(&self) -> Received<N> {
        let inner = self.inner();
        if !inner.request.is_complete() {
            return Received::Nothing;
        }
        match inner.request.result() {
            Ok(Status { len, .. }) if len == N as u64 => Received::Bytes(inner.bytes),
            Ok(_) | Err(Error::Truncated { .. }) => Received::Failure,
            Err(error) => Received::Gone(error),
        }
    }

    /// Cancels a receive that no message has matched.
    pub(super) fn cancel(&self, engine: &Engine) {
        if !self.is_over() {
            // SAFETY: the request was started on this engine, and is valid.
            unsafe { engine.cancel(&raw const self.inner().request) };
        }
    }
}

impl<const N: usize> Drop for Note<N> {
    fn drop(&mut self) {
        if self.is_over() {
            // SAFETY: it came from a box, and the engine does not use it any more.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}
