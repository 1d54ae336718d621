//! What goes wrong ends in MPI's error classes, soon.

mod support;

#[test]
fn truncation_is_an_error_of_its_class() {
    support::run_program(2, "errors", &["truncated"]);
}

#[test]
fn finalize_does_not_wait_for_what_nobody_answers() {
    for ranks in 1..=3 {
        support::run_program(ranks, "errors", &["unfinished"]);
    }
}

#[test]
fn a_request_that_cannot_be_started_fails() {
    support::run_program(1, "errors", &["unstarted"]);
    // Threads wait in a way of their own.
    support::run_program(1, "errors", &["unstarted", "threads"]);
}

/// `mpirun` ends a job of which a rank dies, so that it has to be told not to.
#[test]
fn a_killed_rank_is_an_error_to_those_who_wait_for_it() {
    let mut command = support::mpirun(2);
    command.arg("--enable-recovery").arg(support::program("errors")).arg("killed");
    let run = support::finish(&mut command);
    assert!(run.stdout.contains("all three failed with an error"), "{run:?}");
    assert!(run.stderr.contains("it died"), "{run:?}");
}

#[test]
fn a_rank_that_died_before_it_was_met_is_an_error_to_those_who_wait_for_it() {
    let mut command = support::mpirun(2);
    command.arg("--enable-recovery").arg(support::program("errors")).arg("never-met");
    let run = support::finish(&mut command);
    assert!(run.stdout.contains("all three failed with an error"), "{run:?}");
}

#[test]
fn a_killed_rank_ends_the_job_where_errors_are_fatal() {
    let mut command = support::mpirun(2);
    command.arg("--enable-recovery").arg(support::program("errors")).arg("fatal");
    let run = support::finish(&mut command);
    // Had the receive returned, whatever it said, the program would say one or the other. Open MPI's own words on its end
    // are no proof: mpirun 4.1 loses them now and then, and its exit status as well.
    assert!(run.stderr.contains("it died"), "{run:?}");
    assert!(!run.stdout.contains("all three") && !run.stderr.contains("does not hold"), "{run:?}");
}

#[test]
fn processes_of_another_word_order_are_refused() {
    let run = support::run_program(3, "architecture", &[]);
    assert!(run.stderr.contains("has another byte order or word size"), "{run:?}");
}
