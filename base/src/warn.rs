//! Warnings that say a cause once, however often it recurs.

use std::collections::HashSet;
use std::sync::OnceLock;

use parking_lot::Mutex;

fn said() -> &'static Mutex<HashSet<String>> {
    static SAID: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();
    SAID.get_or_init(Default::default)
}

/// Logs `message` at level warn the first time that `cause` comes by in this process, and nothing after that.
/// Returns whether it was said now. Meant for slow paths: it takes a process-wide lock.
pub fn warn_once(cause: &str, message: impl FnOnce() -> String) -> bool {
    let first = said().lock().insert(cause.to_owned());
    if first {
        log::warn!("{}", message());
    }
    first
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cause_is_said_once() {
        assert!(super::warn_once("warn-test/a", || "said".into()));
        assert!(!super::warn_once("warn-test/a", || unreachable!("a cause already said builds no message")));
        assert!(super::warn_once("warn-test/b", || "said".into()));
    }
}
