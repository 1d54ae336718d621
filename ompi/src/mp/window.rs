//! Windows: memory that the processes of a communicator put to and get from.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use cableway_pml::{Communicator, Error, Exposed, Window};

use super::{Why, answer, text};
use crate::guard::guarded;
use crate::state;
use crate::windows::Host;

/// A window whose every member has locked all others shared, so that accesses may start at any time.
pub(super) struct Opened {
    pub(super) window: Window,
    communicator: Arc<Communicator>,
}

impl Opened {
    /// Fails if a member has died, so that an access may never complete.
    pub(super) fn check(&self) -> Result<(), Error> {
        state::engine().map_or(Err(Error::StreamsEnded), |engine| engine.check_members(&self.communicator))
    }
}

/// # Safety
/// `communicator` is from `cableway_communicator_add`, is removed after the window is freed, and carries nothing else but
/// collectives. The program keeps the memory until then. `out` is valid, and `why` has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_window_new(
    communicator: *const Communicator,
    address: *mut c_void,
    len: u64,
    out: *mut *const Opened,
    why: *mut c_char,
    room: usize,
) -> c_int {
    let call = || {
        let engine = state::engine().and_then(|engine| engine.handle()).ok_or("the engine has ended")?;
        // SAFETY: the pointer is from `Arc::into_raw`, and the communicator is live.
        let communicator = unsafe {
            Arc::increment_strong_count(communicator);
            Arc::from_raw(communicator)
        };
        super::settle(&engine, address, len);
        let exposed = Exposed::Memory { address: address.cast(), len, unit: 1 };
        // SAFETY: the caller's promise.
        let window = unsafe { Window::new(&engine, communicator.clone(), exposed, Arc::new(Host)) }.map_err(text)?;
        window.lock_all().map_err(text)?;
        // SAFETY: the caller's promise.
        unsafe { *out = Arc::into_raw(Arc::new(Opened { window, communicator })) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { answer(Why { text: why, room }, call) }
}

/// Completes the accesses of this process, and gives the locks back.
///
/// # Safety
/// `window` is from [`cableway_mp_window_new`], and not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_window_finish(window: *const Opened) {
    guarded((), || {
        // SAFETY: the caller's promise.
        let Opened { window, .. } = unsafe { &*window };
        if state::engine().is_some()
            && let Err(error) = window.unlock_all()
        {
            state::report(&error);
        }
    });
}

/// # Safety
/// As [`cableway_mp_window_finish`], which was called in all processes, unless the window was never used. It is freed only
/// once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_mp_window_free(window: *const Opened) {
    guarded((), || {
        // SAFETY: the caller's promise. Accesses that are not over share the value.
        let opened = unsafe { Arc::from_raw(window) };
        if state::engine().is_some() {
            opened.window.close();
        }
    });
}
