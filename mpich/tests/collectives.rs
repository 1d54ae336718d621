//! Blocking collectives on host and device memory under MPICH, each result compared with what the program computes itself.
//! Guards around the buffers must keep their contents.
//!
//! Ranks share a device of the simulated driver. `CABLEWAY_TEST_WHOLE=1` draws more shapes.

mod support;

use support::{Finished, Run};

/// Calls with each pair of types, or type and operation, that this MPICH computes rightly.
const CALLS_WITH_TYPES: u64 = 10 * 6 + 6 * 270;

/// Runs a test body, unless there is no MPICH.
fn with_mpich(body: impl FnOnce()) {
    match support::missing() {
        Some(reason) => println!("skipped: {reason}"),
        None => body(),
    }
}

fn drawings() -> u64 {
    if std::env::var_os("CABLEWAY_TEST_WHOLE").is_some_and(|value| value == "1") { 12 } else { 1 }
}

fn shapes(ranks: u32) -> Run {
    Run::new(ranks, "collectives", &["shapes", &drawings().to_string()])
}

/// Checks that no case was left out.
fn assert_checked(run: &Finished, at_least: u64) {
    let checks = run.number("checks");
    assert!(checks >= at_least, "{checks} checks, not {at_least}:\n{}", run.stdout);
    println!("{checks} checks");
}

fn assert_all_checked(run: &Finished, ranks: u32) {
    assert_checked(run, u64::from(ranks) * drawings() * CALLS_WITH_TYPES);
}

/// Counts the lines that say that Cableway performs the calls of a communicator.
fn taken_over(run: &Finished) -> usize {
    run.stderr.matches("from now on performs the blocking collectives").count()
}

fn after_an_agreement(ranks: u32) {
    with_mpich(|| {
        let run = shapes(ranks).with_small_calls().with("CABLEWAY_LOG", "info").finish();
        assert_all_checked(&run, ranks);
        assert!(taken_over(&run) >= 3, "{}", run.stderr);
    });
}

#[test]
fn one_process_changes_to_cableway() {
    after_an_agreement(1);
}

#[test]
fn two_processes_change_to_cableway() {
    after_an_agreement(2);
}

#[test]
fn three_processes_change_to_cableway() {
    after_an_agreement(3);
}

#[test]
fn four_processes_change_to_cableway() {
    after_an_agreement(4);
}

#[test]
fn cableway_performs_all_calls() {
    with_mpich(|| {
        for ranks in [2, 3] {
            let run = shapes(ranks).with_small_calls().with("CABLEWAY_COLL_PERFORMER", "cableway").finish();
            assert_all_checked(&run, ranks);
        }
    });
}

#[test]
fn mpich_performs_all_calls_on_host_copies() {
    with_mpich(|| {
        for ranks in [2, 3] {
            let run = shapes(ranks).with("CABLEWAY_COLL_PERFORMER", "mpi").with("CABLEWAY_LOG", "info").finish();
            assert_all_checked(&run, ranks);
            assert_eq!(taken_over(&run), 0, "{}", run.stderr);
        }
    });
}

/// Large calls change, others stay with MPICH.
#[test]
fn small_calls_of_ranks_that_share_a_device_stay() {
    with_mpich(|| {
        let run = Run::new(3, "collectives", &["random", "500"]).with("CABLEWAY_LOG", "info").finish();
        assert_checked(&run, 3 * 500 * 17 / 20);
        assert!(run.stderr.contains("but for calls below 1048576 bytes: ranks share a device"), "{}", run.stderr);
    });
}

#[test]
fn communicators_come_and_go() {
    with_mpich(|| {
        let run = Run::new(4, "collectives", &["random", "600"]).with_small_calls().finish();
        assert_checked(&run, 4 * 600 * 17 / 20);
    });
}

#[test]
fn two_threads_have_communicators_of_their_own() {
    with_mpich(|| {
        let run = Run::new(2, "collectives", &["random", "300", "2"]).with_small_calls().finish();
        assert_checked(&run, 2 * 2 * 300);
    });
}

/// One communicator of each kind of life: agreed at once, or after an exchange that may be under way when it is freed.
#[test]
fn a_thousand_communicators_leave_nothing() {
    with_mpich(|| {
        for performer in ["auto", "cableway"] {
            let run = Run::new(2, "freed", &["1000"]).with_small_calls().with("CABLEWAY_COLL_PERFORMER", performer);
            assert_eq!(run.finish().number("communicators"), 1000);
        }
    });
}

#[test]
fn waiting_processes_serve_both_libraries() {
    with_mpich(|| {
        for ranks in [2, 3] {
            let run = Run::new(ranks, "progress", &[]).with_small_calls().finish();
            assert_eq!(run.number("rounds"), 20);
        }
    });
}

/// An unknown transport stops the engine only.
#[test]
fn without_an_engine_all_calls_use_host_copies() {
    with_mpich(|| {
        let run = Run::new(2, "progress", &[]).with_small_calls().with("CABLEWAY_BTL", "none").finish();
        assert_eq!(run.number("rounds"), 20);
        assert_eq!(run.stderr.matches("the engine cannot start").count(), 2, "{}", run.stderr);
    });
}

/// Where no device memory may appear, MPICH gets what the program calls, and one exchange in MPI_Init.
#[test]
fn programs_without_devices_pay_one_exchange() {
    with_mpich(|| {
        if support::may_have_device() {
            println!("skipped: this machine may have a device");
            return;
        }
        let run = Run::new(2, "counted", &["100"]).without("CABLEWAY_CUDA_LIBDIR").finish();
        assert_eq!(run.stdout, "allreduce 50, bcast 50, iallreduce 0, allgather 1, set_attr 0\n");
    });
}

/// Where it may appear, the members look before calls 1, 2, 4, 8, 16, 32 and 64.
#[test]
fn programs_on_host_memory_pay_few_exchanges() {
    with_mpich(|| {
        let run = Run::new(2, "counted", &["100"]).finish();
        assert_eq!(run.stdout, "allreduce 50, bcast 50, iallreduce 7, allgather 1, set_attr 1\n");
    });
}
