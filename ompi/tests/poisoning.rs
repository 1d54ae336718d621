//! After a panic in the engine every waiting call ends: with an error, or with the job.

mod support;

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const NO_FAULTS: &str = "this build has no panics on demand, which take debug assertions";

/// Adds the program, and the file that requests a panic.
fn poisoned(mut command: Command, what: &str) -> Command {
    command.env("CABLEWAY_TEST_PANIC", support::scratch().join("panic")).arg(what);
    command
}

/// A single rank that sends to itself.
fn alone(what: &str) -> support::Finished {
    support::finish(&mut poisoned(support::singleton(&support::program("poisoned")), what))
}

/// Checks that every call returned what the program expects, and that the program ended normally.
fn assert_ended_with_errors(what: &str, run: &support::Finished) {
    assert!(run.status.success() && run.stdout.contains("done"), "{what}: {run:?}");
    assert!(run.stderr.contains("panic requested by"), "{what}: {run:?}");
    let said = run.stderr.matches("an internal error stopped message passing in this process").count();
    assert_eq!(said, 1, "{what}: {run:?}");
}

fn assert_aborted(what: &str, run: &support::Finished, reason: &str) {
    assert_eq!(run.status.signal(), Some(libc::SIGABRT), "{what}: {run:?}");
    assert!(run.stderr.contains(reason), "{what}: {run:?}");
}

#[test]
fn waiting_calls_end_with_an_internal_error() {
    if !cfg!(debug_assertions) {
        return support::skip(NO_FAULTS);
    }
    for what in ["all", "each", "test", "any", "receive", "receive-elsewhere", "probe", "start"] {
        assert_ended_with_errors(what, &alone(what));
    }
}

#[test]
fn a_collective_ends_with_an_error() {
    if !cfg!(debug_assertions) {
        return support::skip(NO_FAULTS);
    }
    let mut command = support::mpirun(2);
    command.arg(support::program("poisoned"));
    let run = support::finish(&mut poisoned(command, "collective"));
    assert!(run.stdout.contains("done"), "{run:?}");
}

#[test]
fn the_job_aborts_if_a_buffer_may_be_in_use() {
    if !cfg!(debug_assertions) {
        return support::skip(NO_FAULTS);
    }
    for what in ["transfer", "blocking-transfer"] {
        assert_aborted(what, &alone(what), "a peer or a device may still use a buffer");
    }
}

#[test]
fn the_job_aborts_if_other_threads_may_be_inside() {
    if !cfg!(debug_assertions) {
        return support::skip(NO_FAULTS);
    }
    for what in ["threads-wait", "a-thread-looks"] {
        assert_aborted(what, &alone(what), "aborting the job");
    }
}

#[test]
fn the_job_aborts_if_the_engine_continues() {
    if !cfg!(debug_assertions) {
        return support::skip(NO_FAULTS);
    }
    assert_aborted("completion", &alone("completion"), "it happened in a completion callback");
}
