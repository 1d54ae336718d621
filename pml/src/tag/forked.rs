//! The engine's copy in a forked child.
//!
//! The child has the engine in whatever state the parent's threads had it. None of them goes on, and their locks may be
//! held for ever; what the transports reach peers by is the parent's alone (`cableway_base::fork`). So a call in a child
//! answers [`Error::Forked`], or does nothing, before it touches any of that.

use std::ptr::NonNull;

use super::request::{Receive, Request};
use crate::core::Done;
use crate::error::Error;

/// Ends operations that the parent began.
#[cold]
pub(super) fn end_in_child(requests: &[&Request]) {
    let mut done = Done::default();
    for request in requests.iter().filter(|request| request.is_active()) {
        // SAFETY: the engine's tables hold another value for this request, which no call in a child uses: all of them end
        // before they look there.
        unsafe { Receive::new(NonNull::from(*request)) }.fail(Error::Forked, &mut done);
    }
    done.run();
}
