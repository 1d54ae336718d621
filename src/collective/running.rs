//! Collective operations under way that nobody waits for yet.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Instant;

use cableway_pml::{Engine, Task};
use parking_lot::Mutex;

use crate::Error;
use crate::error::Collective;
use crate::in_flight::PANIC_TIMEOUT;

/// An operation under way. The engine polls it as one of its tasks.
pub(crate) struct Running {
    operation: Collective,
    state: Mutex<State>,
    ended: AtomicBool,
    /// The memory of an operation without a buffer of the program.
    _token: Option<Token>,
}

/// Memory of a barrier.
pub(crate) type Token = Arc<AtomicU8>;

enum State {
    UnderWay(Box<cableway_coll::Operation>),
    Ended(Result<(), cableway_coll::Error>),
}

impl Running {
    /// Begins to poll an operation. It keeps the token until it is dropped.
    pub(crate) fn start(
        engine: &Engine,
        operation: Collective,
        started: cableway_coll::Operation,
        token: Option<Token>,
    ) -> Arc<Running> {
        let state = Mutex::new(State::UnderWay(Box::new(started)));
        let running = Arc::new(Running { operation, state, ended: AtomicBool::new(false), _token: token });
        // The first messages leave at once.
        if !running.poll() {
            engine.add_task(running.clone());
        }
        running
    }

    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits for the end, and returns the result.
    pub(crate) fn wait(&self, engine: &Engine) -> Result<(), Error> {
        engine.wait_until(|| self.has_ended());
        let result = match &*self.state.lock() {
            State::Ended(result) => result.clone(),
            // Only in a forked child it never ends.
            State::UnderWay(_) => Err(cableway_pml::Error::Forked.into()),
        };
        result.map_err(|error| self.operation.failed(error))
    }

    /// Ends the operation while a panic unwinds, which must not free its buffers. Aborts if it does not end in time.
    fn end_in_panic(&self, engine: &Engine) {
        if let State::UnderWay(operation) = &mut *self.state.lock() {
            operation.give_up();
        }
        let end = Instant::now() + PANIC_TIMEOUT;
        engine.wait_until(|| self.has_ended() || Instant::now() > end);
        if !self.has_ended() && !engine.is_forked() {
            log::error!("aborting: a thread panicked while a peer reads or writes its memory");
            std::process::abort();
        }
    }
}

impl Task for Running {
    fn poll(&self) -> bool {
        let mut state = self.state.lock();
        let State::UnderWay(operation) = &mut *state else { return true };
        let result = match operation.poll() {
            Ok(false) => return false,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        *state = State::Ended(result);
        drop(state);
        self.ended.store(true, Ordering::Release);
        true
    }
}

/// Operations of one thread that nobody waited for. Dropping the list waits for them.
pub(crate) struct RunningList<'e> {
    engine: &'e Engine,
    list: RefCell<Vec<Arc<Running>>>,
}

impl<'e> RunningList<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        RunningList { engine, list: RefCell::default() }
    }

    pub(crate) fn push(&self, running: Arc<Running>) {
        self.list.borrow_mut().push(running);
    }

    /// Waits for an operation of the list, and takes it out.
    pub(crate) fn wait(&self, running: &Arc<Running>) -> Result<(), Error> {
        let result = running.wait(self.engine);
        self.list.borrow_mut().retain(|other| !Arc::ptr_eq(other, running));
        result
    }
}

impl Drop for RunningList<'_> {
    fn drop(&mut self) {
        for running in self.list.get_mut().drain(..) {
            if std::thread::panicking() {
                running.end_in_panic(self.engine);
            } else if let Err(error) = running.wait(self.engine) {
                log::warn!("{error}; it was not waited for");
            }
        }
    }
}
