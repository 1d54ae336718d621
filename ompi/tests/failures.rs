//! Failures end soon, with MPI's error classes.

mod support;

#[test]
fn truncation_is_an_error_of_its_class() {
    support::run_program(2, "errors", &["truncated"]);
}

#[test]
fn finalize_does_not_wait_for_unmatched_operations() {
    for ranks in 1..=3 {
        support::run_program(ranks, "errors", &["unfinished"]);
    }
}

#[test]
fn a_request_that_cannot_be_started_fails() {
    support::run_program(1, "errors", &["unstarted"]);
    // Threads wait by another function.
    support::run_program(1, "errors", &["unstarted", "threads"]);
}

/// `mpirun` ends a job if a rank dies, unless it is configured otherwise.
#[test]
fn operations_on_a_killed_rank_fail() {
    let mut command = support::mpirun(2);
    command.arg("--enable-recovery").arg(support::program("errors")).arg("killed");
    let run = support::finish(&mut command);
    assert!(run.stdout.contains("all three failed with an error"), "{run:?}");
    assert!(run.stderr.contains("it died"), "{run:?}");
}

#[test]
fn operations_on_a_rank_that_died_before_connecting_fail() {
    let mut command = support::mpirun(2);
    command.arg("--enable-recovery").arg(support::program("errors")).arg("never-met");
    let run = support::finish(&mut command);
    assert!(run.stdout.contains("all three failed with an error"), "{run:?}");
}

#[test]
fn a_killed_rank_ends_the_job_if_errors_are_fatal() {
    let mut command = support::mpirun(2);
    command.arg("--enable-recovery").arg(support::program("errors")).arg("fatal");
    let run = support::finish(&mut command);
    // If the receive returned, the program would print one of two lines. Open MPI's own message and mpirun's exit
    // status are no proof, because mpirun 4.1 sometimes loses them.
    assert!(run.stderr.contains("it died"), "{run:?}");
    assert!(!run.stdout.contains("all three") && !run.stderr.contains("does not hold"), "{run:?}");
}

#[test]
fn processes_of_another_byte_order_are_refused() {
    let run = support::run_program(3, "architecture", &[]);
    assert!(run.stderr.contains("has another byte order or word size"), "{run:?}");
}
