//! Whether what is sent now may wait a moment for company. While the engine hands up several messages that arrived
//! together, the answers go out together: one system call for all of them instead of one each.
//!
//! A property of the thread, since only what is sent from within an upcall has the engine behind it, which writes
//! what was gathered before `progress` returns.

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
