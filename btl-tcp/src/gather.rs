//! Batches small messages. While the engine hands up several messages that arrived together, their answers are gathered
//! into one system call.
//!
//! This is per thread: only messages sent from within an upcall have the engine behind them, which writes gathered
//! messages before `progress` returns.

use std::cell::Cell;

thread_local! {
    static GATHERING: Cell<bool> = const { Cell::new(false) };
}

/// Whether small messages are to be queued.
#[inline]
pub(crate) fn is_on() -> bool {
    GATHERING.get()
}

/// From here to the end of the [`Scope`], or [`end`].
#[inline]
pub(crate) fn begin() {
    GATHERING.set(true);
}

pub(crate) fn end() {
    GATHERING.set(false);
}

/// A call of `progress`: gathering that began within it ends with it, however it ends.
pub(crate) struct Scope {
    before: bool,
}

impl Scope {
    pub(crate) fn new() -> Self {
        Scope { before: GATHERING.replace(false) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        GATHERING.set(self.before);
    }
}
