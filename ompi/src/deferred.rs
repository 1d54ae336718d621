//! What belongs to the program's threads, but becomes known on the thread of streams.
//!
//! Open MPI's requests are completed, and its objects released, on threads of the program only: completion calls back into
//! Open MPI, which at `MPI_THREAD_SINGLE` expects no other thread. The thread of streams makes progress for all
//! messages, so it leaves that to the next thread that makes progress.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Something to do on a thread of the program.
type Act = Box<dyn FnOnce() + Send>;

/// The thread of streams may exist.
static STREAMS: AtomicBool = AtomicBool::new(false);
/// The queue is not empty.
static WAITING: AtomicBool = AtomicBool::new(false);
static QUEUE: Mutex<VecDeque<Act>> = Mutex::new(VecDeque::new());

/// Notes that the thread of streams is about to start.
pub(crate) fn expect_streams() {
    STREAMS.store(true, Ordering::Release);
}

/// Does something now on a thread of the program, or leaves it to one.
#[inline]
pub(crate) fn in_program(act: impl FnOnce() + Send + 'static) {
    if STREAMS.load(Ordering::Relaxed) && cableway_pml::is_stream_thread() {
        defer(Box::new(act));
    } else {
        act();
    }
}

/// Leaves something to the next thread of the program that makes progress.
#[cold]
pub(crate) fn defer(act: Act) {
    let mut queue = QUEUE.lock();
    queue.push_back(act);
    WAITING.store(true, Ordering::Release);
}

/// Does what was left to a thread of the program, which is the calling one. Returns how much it was.
#[inline]
pub(crate) fn perform() -> usize {
    if WAITING.load(Ordering::Relaxed) { perform_all() } else { 0 }
}

#[cold]
fn perform_all() -> usize {
    let mut performed = 0;
    loop {
        let act = {
            let mut queue = QUEUE.lock();
            let act = queue.pop_front();
            WAITING.store(!queue.is_empty(), Ordering::Release);
            act
        };
        // The lock is free: what is done may call back in.
        let Some(act) = act else { return performed };
        act();
        performed += 1;
    }
}

/// Forgets what was left to a thread of the program, and the memory of it.
pub(crate) fn discard() {
    std::mem::take(&mut *QUEUE.lock()).into_iter().for_each(std::mem::forget);
    WAITING.store(false, Ordering::Release);
}

/// A pointer that the shim passed and gets back.
pub(crate) struct Owner(*mut std::ffi::c_void);

// SAFETY: it is passed back to the shim only, on threads that may use it.
unsafe impl Send for Owner {}

impl Owner {
    pub(crate) fn new(owner: *mut std::ffi::c_void) -> Owner {
        Owner(owner)
    }

    pub(crate) fn get(self) -> *mut std::ffi::c_void {
        self.0
    }
}
