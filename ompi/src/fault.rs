//! Fault injection: panics that tests provoke. Only builds with debug assertions contain it.
//!
//! `CABLEWAY_TEST_PANIC` is a path prefix. A process panics when it reaches a point for which a file `PREFIX.PID.POINT`
//! exists, and removes the file first. So a test program chooses the time and the point, and each file causes one
//! panic.

/// A place in the code where a test can provoke a panic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Point {
    /// In a blocking call.
    Wait,
    /// In the progress function that Open MPI calls.
    Progress,
    /// After an operation was started, before its call returns.
    Start,
    /// In a call from a completion callback.
    Completion,
}

#[cfg(debug_assertions)]
pub(crate) fn point(point: Point) {
    use std::sync::LazyLock;

    static PREFIX: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("CABLEWAY_TEST_PANIC").ok());
    let Some(prefix) = &*PREFIX else { return };
    let name = match point {
        Point::Wait => "wait",
        Point::Progress => "progress",
        Point::Start => "start",
        Point::Completion => "completion",
    };
    let file = format!("{prefix}.{}.{name}", std::process::id());
    if std::fs::remove_file(&file).is_ok() {
        panic!("panic requested by {file}");
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn point(_point: Point) {}
