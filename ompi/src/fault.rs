//! Panics on demand, so that tests see what follows one. Only builds with debug assertions have it: nothing of it is in a
//! component that users install, neither code nor a parameter.
//!
//! `CABLEWAY_TEST_PANIC` names the beginning of paths. A process panics when it comes to a point for which there is a file
//! `PREFIX.PID.POINT`, and removes the file first. So a program says itself when and where, and one file is one panic.

/// Where a panic can be had.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Point {
    /// In a call that waits.
    Wait,
    /// Where Open MPI has the engine progress.
    Progress,
    /// After an operation was started, before its call returns.
    Start,
    /// In a call that is made while a completion is reported.
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
        panic!("{file} asked for a panic");
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn point(_point: Point) {}
