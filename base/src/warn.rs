//! Logs each cause of a warning once, however often it recurs.

use std::collections::HashSet;
use std::sync::OnceLock;

use parking_lot::Mutex;

fn logged() -> &'static Mutex<HashSet<String>> {
    static LOGGED: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();
    LOGGED.get_or_init(Default::default)
}

/// Logs `message` at level warn at the first call with `cause` in this process, and does nothing at later calls.
/// Returns whether it logged. Use it on slow paths only: it takes a process-wide lock.
pub fn warn_once(cause: &str, message: impl FnOnce() -> String) -> bool {
    let first = logged().lock().insert(cause.to_owned());
    if first {
        log::warn!("{}", message());
    }
    first
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cause_is_logged_once() {
        assert!(super::warn_once("warn-test/a", || "logged".into()));
        assert!(!super::warn_once("warn-test/a", || unreachable!("a second call builds no message")));
        assert!(super::warn_once("warn-test/b", || "logged".into()));
    }
}
