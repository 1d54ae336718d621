//! The engine's copy in a forked child.
//!
//! The child inherits the engine in whatever state the parent's threads left it. None of those threads continues, and
//! their locks may be held for ever. The connections to peers belong to the parent alone (`cableway_base::fork`). So a
//! call in a child returns [`Error::Forked`], or does nothing, before it touches the state.

use std::ptr::NonNull;

use super::engine::Engine;
use super::request::Request;
use crate::core::Done;
use crate::error::Error;
use crate::status::Status;

impl Engine {
    /// Returns whether this is a copy in a child.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        self.core().is_forked()
    }

    /// Ends operations that the parent began.
    #[cold]
    pub(super) fn end_in_child(&self, requests: &[&Request]) {
        let mut done = Done::default();
        for request in requests.iter().filter(|request| request.is_active()) {
            // SAFETY: the engine's tables hold another reference to this request, but no call in a child uses it: all
            // of them return earlier.
            let active = unsafe { Request::activate(NonNull::from(*request)) };
            active.complete(Status::EMPTY, Some(Error::Forked), &mut done);
        }
        done.run();
    }
}
