//! Messages between ranks of one job, and between ranks of several jobs.

mod support;

#[test]
fn neighbours_exchange_messages_of_every_size() {
    for ranks in 1..=3 {
        support::run_program(ranks, "ring", &[]);
    }
}

#[test]
fn requests_may_be_freed_cancelled_and_restarted() {
    for ranks in 1..=3 {
        support::run_program(ranks, "requests", &[]);
    }
}

/// Freed memory is overwritten, so that its use is detected.
#[test]
fn a_matched_message_keeps_its_communicator() {
    for ranks in 1..=2 {
        let mut command = support::mpirun(ranks);
        command.env("MALLOC_PERTURB_", "165").arg(support::program("matched"));
        support::finish(&mut command).assert_success();
    }
}

#[test]
fn nonblocking_sends_never_wait_for_credit() {
    // A sixth of the messages uses up the credit, even if they are empty.
    for (ranks, btl) in [(1, "self,sm"), (2, "self,sm"), (3, "self,sm"), (2, "self,tcp")] {
        let mut mpirun = support::mpirun(ranks);
        mpirun.args(["--mca", "pml_cableway_pml_unexpected_limit", "8K", "--mca", "pml_cableway_btl", btl]);
        support::finish(mpirun.arg(support::program("credit")).arg("400")).assert_success();
    }
}

#[test]
fn derived_types_arrive_as_mpi_pack_defines() {
    for ranks in 1..=2 {
        support::run_program(ranks, "types", &[]);
    }
}

#[test]
fn waiting_calls_progress_the_rest_of_open_mpi() {
    for ranks in 2..=3 {
        support::run_program(ranks, "progress", &[]);
    }
}

#[test]
fn many_threads_send_at_once() {
    support::run_program(2, "threads", &[]);
}

#[test]
fn processes_of_several_jobs_connect() {
    for ranks in 1..=3 {
        support::run_program(ranks, "dynamic", &[]);
    }
}

/// Each process leaves normally, even if its peers have left before.
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
