//! The engine's copy in a forked child.
//!
//! The child has the engine in whatever state the parent's threads had left it. None of these threads goes on, and their
//! locks may be held for ever. The connections to peers are the parent's alone (`cableway_base::fork`). So a call in a child
//! answers [`Error::Forked`], or does nothing, before it touches any of that.

use std::ptr::NonNull;

use super::engine::Engine;
use super::request::Request;
use crate::core::Done;
use crate::error::Error;
use crate::status::Status;

impl Engine {
    /// Whether this is a copy in a child.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        self.core().is_forked()
    }

    /// Ends operations that the parent began.
    #[cold]
    pub(super) fn end_in_child(&self, requests: &[&Request]) {
        let mut done = Done::default();
        for request in requests.iter().filter(|request| request.is_active()) {
            // SAFETY: the engine's tables hold another reference to this request, which no call in a child uses: all of
            // them end before they look there.
            let active = unsafe { Request::activate(NonNull::from(*request)) };
            active.complete(Status::EMPTY, Some(Error::Forked), &mut done);
        }
        done.run();
    }
}
