//! Batches small messages. While the engine delivers several messages that arrived together, one system call sends all
//! answers.
//!
//! The state is per thread: only messages from within an upcall are followed by the engine, which writes gathered
//! messages before `progress` returns.

use std::cell::Cell;

thread_local! {
    static GATHERING: Cell<bool> = const { Cell::new(false) };
}

/// Whether to queue small messages.
#[inline]
pub(crate) fn is_on() -> bool {
    GATHERING.get()
}

/// Starts to gather, until the end of the [`Scope`], or [`end`].
#[inline]
pub(crate) fn begin() {
    GATHERING.set(true);
}

pub(crate) fn end() {
    GATHERING.set(false);
}

/// A call of `progress`. Gathering that started within it ends when it returns or panics.
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
