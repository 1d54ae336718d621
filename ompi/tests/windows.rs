//! Windows in device memory, on the simulated driver or on the one that `CABLEWAY_CUDA_LIBDIR` names.

mod support;

use std::process::Command;
use std::time::Duration;

/// Only a hang takes so long.
const LIMIT: Duration = Duration::from_secs(300);

fn run(ranks: u32, name: &str, options: &[&str]) -> support::Finished {
    let mut command: Command = support::mpirun(ranks);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).args(options).arg(support::program(name));
    let run = support::finish_within(&mut command, LIMIT).assert_success();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    run
}

#[test]
fn windows_in_device_memory_work_in_every_epoch() {
    for ranks in 1..=4 {
        support::assert_checked(&run(ranks, "exposed", &[]), 340 * u64::from(ranks));
    }
}

#[test]
fn windows_in_device_memory_work_over_sockets() {
    support::assert_checked(&run(3, "exposed", &["--mca", "pml_cableway_btl", "self,tcp"]), 3 * 340);
}

#[test]
fn accumulates_make_every_operation_on_every_type() {
    for ranks in 1..=3 {
        // Four kinds of memory, and two checks of each of 280 combinations of operation and type. The reference is
        // MPI_Reduce_local, whose faster functions saturate sums of 8 and 16 bits.
        support::assert_checked(
            &run(ranks, "exposed_accumulates", &["--mca", "op", "^avx"]),
            4 * (2 * 280 + 1) * u64::from(ranks),
        );
    }
}

#[test]
fn what_is_out_of_range_or_order_is_refused() {
    for ranks in 1..=2 {
        let refused = run(ranks, "exposed_errors", &[]);
        support::assert_checked(&refused, 8 * u64::from(ranks));
        // Open MPI 5.0's launcher may split a line between the two.
        let lines = refused.stdout.lines().map(|line| line.split("checks: ").next().unwrap_or_default());
        let all: String = lines.chain([refused.stderr.as_str()]).collect();
        for said in ["of its window: the bytes are outside", "the epoch of the window does not allow the call"] {
            assert!(all.contains(said), "{said}: {refused:?}");
        }
    }
}

#[test]
fn windows_allocate_the_kind_of_memory_that_an_info_asks_for() {
    for ranks in 1..=3 {
        let asked = run(ranks, "allocated", &[]);
        support::assert_checked(&asked, 15 * u64::from(ranks));
        for said in ["the value 'cuda:unheard_of'; use cuda:device", "this thread has no current device of that vendor"]
        {
            assert!(asked.stderr.contains(said), "{said}: {asked:?}");
        }
    }
}

#[test]
fn threads_use_windows_in_device_memory_at_once() {
    for ranks in 2..=3 {
        support::assert_checked(&run(ranks, "exposed_threads", &[]), 80 * u64::from(ranks));
    }
}
