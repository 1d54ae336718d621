//! The streams of this process, and what must change before their thread starts.

use std::sync::Arc;

use cableway_base::lock::end_elision;
use cableway_pml::{Engine, Error, Streams};
use parking_lot::Mutex;

use crate::{deferred, poison, state};

static STREAMS: Mutex<Option<Streams>> = Mutex::new(None);

unsafe extern "C" {
    fn shim_use_threads();
}

/// Returns the streams of the engine. The first call makes a second thread possible.
pub(crate) fn streams(engine: &Arc<Engine>) -> Result<Streams, Error> {
    let mut streams = STREAMS.lock();
    if let Some(streams) = &*streams {
        return Ok(streams.clone());
    }
    prepare_for_threads();
    deferred::expect_streams();
    let new = Streams::new(engine)?;
    Ok(streams.insert(new).clone())
}

/// Makes the locks of the engine and of Open MPI real, if MPI was initialised without `MPI_THREAD_MULTIPLE`. From then on
/// this process acts inside as under `MPI_THREAD_MULTIPLE`; the level that MPI granted stays.
fn prepare_for_threads() {
    if state::is_multithreaded() {
        return;
    }
    // Below MPI_THREAD_MULTIPLE the program's calls do not overlap, and this is one of them, so that no other thread is in
    // the engine. The shim refuses this call within a completion, and the engine calls nothing else of the program.
    // SAFETY: so this call holds no lock of the engine, nor does another thread. The thread of streams starts later, and the
    // program orders its own threads.
    unsafe { end_elision() };
    state::set_multithreaded(true);
    // SAFETY: as above.
    unsafe { shim_use_threads() };
}

/// Ends the thread of streams, and what waits for it.
pub(crate) fn stop() {
    // The thread ends with the last value.
    drop(STREAMS.lock().take());
    // Open MPI is about to end, and nobody asks for what was left.
    deferred::discard();
}

/// Poisons the engine if the thread of streams has panicked.
pub(crate) fn check() {
    let ended = STREAMS.try_lock().is_some_and(|streams| streams.as_ref().is_some_and(Streams::have_ended));
    if ended {
        // SAFETY: null.
        unsafe { poison::poison(std::ptr::null()) };
    }
}
