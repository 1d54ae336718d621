//! Watches a peer: a receive that names it, which no message matches, ends when the peer is gone.

use std::ffi::c_void;
use std::sync::{Arc, Weak};

use cableway_base::Rank;

use super::owner::disconnect;
use crate::am::Poster;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::tag::{Engine, Request};
use crate::wire::Malformed;

/// No message has this tag.
const TAG: i32 = i32::MIN + 1;

#[repr(C)]
struct Watch {
    /// The first field, so that both have the same address.
    request: Request,
    /// Weak, because the engine keeps this.
    engine: Weak<Engine>,
    peer: Rank,
    gone: Box<dyn FnOnce(Error) + Send>,
}

/// Calls `gone` once the peer is gone, or once the communicator is removed.
///
/// # Errors
/// The peer is gone already. `gone` is dropped.
pub(super) fn watch(poster: &Poster, peer: Rank, gone: impl FnOnce(Error) + Send + 'static) -> Result<(), Error> {
    let engine = Arc::downgrade(poster.engine());
    let watch = Watch { request: Request::new(), engine, peer, gone: Box::new(gone) };
    let watch = Box::into_raw(Box::new(watch));
    // SAFETY: the request is new, and the hook gets the box that it expects.
    unsafe { (*watch).request.set_hook(Some((ended, watch.cast()))) };
    // SAFETY: the empty buffer is valid, and the box lives until the hook frees it.
    let posted = unsafe {
        poster.engine().irecv(poster.communicator(), peer as i32, TAG, Buffer::EMPTY, watch.cast_const().cast())
    };
    posted.inspect_err(|_| {
        // SAFETY: the request is not active, so this function owns the box again.
        drop(unsafe { Box::from_raw(watch) });
    })
}

/// Reports the end of a watch. It is the hook of its request.
///
/// # Safety
/// `user` is a leaked box of a [`Watch`], and nothing else uses it.
unsafe fn ended(_request: *const Request, user: *mut c_void) {
    // SAFETY: the caller's promise.
    let Watch { request, engine, peer, gone } = *unsafe { Box::from_raw(user.cast::<Watch>()) };
    let error = request.error().cloned().unwrap_or_else(|| {
        if let Some(engine) = engine.upgrade() {
            disconnect(&engine, peer, &Malformed::OneSided("a message that nobody sends"));
        }
        Error::PeerFailed { peer, reason: "it sent a malformed message".into() }
    });
    gone(error);
}
