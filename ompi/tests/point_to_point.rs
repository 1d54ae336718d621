//! Messages between the ranks of one job, and between those of several.

mod support;

#[test]
fn neighbours_exchange_messages_of_every_size() {
    for ranks in 1..=3 {
        support::run_program(ranks, "ring", &[]);
    }
}

#[test]
fn requests_do_what_mpi_allows() {
    for ranks in 1..=3 {
        support::run_program(ranks, "requests", &[]);
    }
}

/// What is freed is overwritten, so that a use of it does not go unnoticed.
#[test]
fn a_message_taken_by_a_probe_keeps_its_communicator() {
    for ranks in 1..=2 {
        let mut command = support::mpirun(ranks);
        command.env("MALLOC_PERTURB_", "165").arg(support::program("matched"));
        support::finish(&mut command).assert_success();
    }
}

#[test]
fn no_send_waits_for_credit_that_must_not() {
    // A sixth of the messages uses it up, empty ones as well.
    for (ranks, btl) in [(1, "self,sm"), (2, "self,sm"), (3, "self,sm"), (2, "self,tcp")] {
        let mut mpirun = support::mpirun(ranks);
        mpirun.args(["--mca", "pml_cableway_pml_unexpected_limit", "8K", "--mca", "pml_cableway_btl", btl]);
        support::finish(mpirun.arg(support::program("credit")).arg("400")).assert_success();
    }
}

#[test]
fn derived_types_arrive_as_mpi_packs_them() {
    for ranks in 1..=2 {
        support::run_program(ranks, "types", &[]);
    }
}

#[test]
fn whoever_waits_lets_the_rest_of_open_mpi_advance() {
    for ranks in 2..=3 {
        support::run_program(ranks, "progress", &[]);
    }
}

#[test]
fn many_threads_send_at_once() {
    support::run_program(2, "threads", &[]);
}

#[test]
fn processes_of_several_jobs_meet() {
    for ranks in 1..=3 {
        support::run_program(ranks, "dynamic", &[]);
    }
}

/// Each in order, whether or not those that it is connected to have left before.
#[test]
fn processes_of_several_jobs_leave_at_any_time() {
    for (ranks, when) in [(1, "at-once"), (1, "late"), (2, "at-once"), (2, "late")] {
        let fifo = support::scratch().join(format!("leaving-{}-{ranks}-{when}", std::process::id()));
        let arguments = [fifo.to_str().expect("plain"), when];
        let mut mpirun = support::mpirun(ranks);
        let (finished, said) = support::run_apart(&mut mpirun, ranks, &support::program("leaving"), &arguments);
        let _ = std::fs::remove_file(&fifo);
        let finished = finished.assert_success();
        assert!(said.iter().all(|said| said == "done\n"), "{ranks} {when}: {finished:?} {said:?}");
        assert!(!finished.stderr.contains("cableway:"), "{ranks} {when}: {finished:?}");
    }
}
