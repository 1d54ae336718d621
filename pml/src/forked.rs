//! The engine's copy in a forked child.
//!
//! The child has the engine in whatever state the parent's threads had it. None of them goes on, and their locks may be
//! held for ever; what the transports reach peers by is the parent's alone (`cableway_base::fork`). So a call in a child
//! answers [`Error::Forked`], or does nothing, before it touches any of that.

use std::ptr::NonNull;

use crate::completion::{Active, Done};
use crate::engine::Engine;
use crate::error::Error;
use crate::request::Request;

impl Engine {
    /// Whether this is a copy in a child.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        !self.origin.is_here()
    }

    /// Ends operations that the parent began.
    #[cold]
    pub(crate) fn end_in_child(&self, requests: &[&Request]) {
        let mut done = Done::default();
        for request in requests.iter().filter(|request| request.is_active()) {
            // SAFETY: the engine's tables hold another of this request, which no call in a child uses: all of them end
            // before they look there.
            unsafe { Active::new(NonNull::from(*request)) }.fail(Error::Forked, &mut done);
        }
        done.run();
    }
}
