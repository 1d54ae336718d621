//! Notices under way.

use cableway_pml::{Buffer, Communicator, Engine, Error, NOTICE, Outcome, Request, SendMode, Task};

use crate::agreement::Notice;

/// A notice under way. One that is dropped while the engine uses it is leaked.
pub(super) struct Sending {
    /// The engine knows the address.
    inner: Option<Box<Inner>>,
}

struct Inner {
    request: Request,
    bytes: [u8; Notice::LEN],
}

impl Sending {
    /// Sends a notice. With `matched`, it ends only when the receiver takes it, and fails if the receiver has removed the
    /// communicator. Returns `None` if it has ended.
    ///
    /// # Errors
    /// The receiver is gone, or the communicator is removed here.
    pub(super) fn start(
        engine: &Engine,
        on: &Communicator,
        to: u32,
        bytes: [u8; Notice::LEN],
        matched: bool,
    ) -> Result<Option<Sending>, Error> {
        let inner = Box::new(Inner { request: Request::new(), bytes });
        let buffer = Buffer::bytes(inner.bytes.as_ptr(), Notice::LEN as u64);
        let mode = if matched { SendMode::Synchronous } else { SendMode::Standard };
        // SAFETY: the box is kept until the request is complete.
        let sent = unsafe { engine.isend(on, to as i32, NOTICE, buffer, &mode, &raw const inner.request) }?;
        Ok((sent == Outcome::Started).then_some(Sending { inner: Some(inner) }))
    }

    /// Checks whether it has ended, well or not.
    pub(super) fn is_over(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.request.is_complete())
    }

    /// Returns the error that ended it.
    fn failure(&self) -> Option<Error> {
        self.inner.as_ref().and_then(|inner| inner.request.result().err())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.is_over() {
            // An engine that ended early may still know the address.
            std::mem::forget(self.inner.take());
        }
    }
}

/// A proposal under way. Its sender learns whether the receiver has left.
pub(super) struct Proposal<F> {
    sending: Sending,
    lost: F,
}

impl<F: Fn(Error)> Proposal<F> {
    /// Calls `lost` if the proposal fails.
    pub(super) fn new(sending: Sending, lost: F) -> Proposal<F> {
        Proposal { sending, lost }
    }
}

impl<F: Fn(Error) + Send + Sync> Task for Proposal<F> {
    fn poll(&self) -> bool {
        if !self.sending.is_over() {
            return false;
        }
        if let Some(error) = self.sending.failure() {
            (self.lost)(error);
        }
        true
    }
}
