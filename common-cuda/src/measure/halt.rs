//! Ending a measurement early.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Asks a measurement to end.
#[derive(Debug, Default)]
pub(super) struct Halt {
    halted: Mutex<bool>,
    changed: Condvar,
}

impl Halt {
    pub(super) fn is_halted(&self) -> bool {
        *self.halted.lock()
    }

    pub(super) fn halt(&self) {
        *self.halted.lock() = true;
        self.changed.notify_all();
    }

    /// Pauses. Returns true if no halt was requested meanwhile.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let mut halted = self.halted.lock();
        self.changed.wait_while_for(&mut halted, |halted| !*halted, pause);
        !*halted
    }
}
