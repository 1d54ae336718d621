//! MPICH's stream extensions, on the simulated driver or on the one that `CABLEWAY_CUDA_LIBDIR` names.

mod support;

use std::process::Command;
use std::time::Duration;

/// Only a hang takes so long.
const LIMIT: Duration = Duration::from_secs(300);
const LEVELS: [&str; 3] = ["single", "serialized", "multiple"];

fn mpirun(ranks: u32, name: &str, arguments: &[&str]) -> Command {
    let mut command = support::mpirun(ranks);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(support::program(name)).args(arguments);
    command
}

fn run(ranks: u32, name: &str, arguments: &[&str]) -> support::Finished {
    finish(&mut mpirun(ranks, name, arguments))
}

fn finish(command: &mut Command) -> support::Finished {
    let run = support::finish_within(command, LIMIT).assert_success();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    run
}

#[test]
fn messages_are_in_the_order_of_streams_at_every_thread_level() {
    for level in LEVELS {
        support::assert_checked(&run(2, "streams", &[level]), 1500);
    }
}

/// Messages that are staged, and collectives on copies in host memory, follow no stream that waits.
#[test]
fn nothing_staged_waits_for_a_stream_that_waits() {
    for (name, value) in [("device_protocols", "copy"), ("coll_performer", "mpi")] {
        let mut command = mpirun(2, "streams", &["single"]);
        command.env(format!("OMPI_MCA_pml_cableway_{name}"), value);
        support::assert_checked(&finish(&mut command), 1500);
    }
}

#[test]
fn a_kernel_that_faults_does_not_hold_up_other_ranks() {
    let run = run(3, "streams_faulted", &[]);
    support::assert_checked(&run, 2);
}

#[test]
fn kernels_that_fill_the_device_delay_no_copy_and_hold_up_nothing() {
    // Of each process: four messages of each size and round, a call beside the kernel, and sums; blocks by rank 1.
    let each = 3 * (3 * (4 + 1) + 1);
    support::assert_checked(&run(2, "streams_occupied", &[]), 2 * each + 3);
}

#[test]
fn what_cannot_be_enqueued_is_refused_and_errors_are_told() {
    for level in ["single", "multiple"] {
        let run = run(2, "streams_errors", &[level]);
        support::assert_checked(&run, 2 * 40);
        let said = run.stdout + &run.stderr;
        for reason in [
            "the info has type levelZero: use cudaStream_t or hipStream_t",
            "the info has no value",
            "the communicator has no stream: make one by MPIX_Stream_comm_create",
            "the communicator has several streams",
            "the communicator's stream is no stream of a device",
            "free them first",
        ] {
            assert!(said.contains(reason), "{reason}: {said}");
        }
    }
}

#[test]
fn the_example_relays_a_field() {
    let driver = support::driver();
    let search = format!("-L{}", driver.display());
    let flags = [&search, "-l:libcuda.so.1", &format!("-Wl,-rpath,{}", driver.display())];
    let mut command = support::mpirun(2);
    command.env("CABLEWAY_CUDA_LIBDIR", &driver).arg(support::linked_with_streams(
        "stream_relay",
        "../../examples/stream_relay.c",
        &flags,
    ));
    let run = support::finish_within(&mut command, LIMIT).assert_success();
    assert_eq!(run.stdout.matches("100 steps, 0 of 65536 bytes are wrong").count(), 2, "{run:?}");
}

#[test]
fn collective_operations_are_in_the_order_of_streams() {
    for (ranks, level) in [(1, "single"), (2, "single"), (3, "multiple")] {
        // Of each process: five kinds with a block for each round, two with one for each rank, four sizes.
        let blocks = u64::from(4 * 6 * (5 + 2 * ranks));
        support::assert_checked(&run(ranks, "streams_collectives", &[level]), u64::from(ranks) * (blocks + 6 + 10));
    }
}

#[test]
fn threads_use_streams_at_once() {
    support::assert_checked(&run(2, "streams_threads", &[]), 2 * 3 * 60);
}

/// What `benches/gpu/run streams` times. The other ways need libraries that are not here.
#[test]
fn the_benchmark_times_messages_on_streams() {
    let program =
        support::linked_with_streams("stream_peers", "../../../benches/peers/streams.c", &["-Wno-unused-function"]);
    for way in ["mpi", "enqueue"] {
        let mut command = support::mpirun(2);
        command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(&program).args([way, "0.001", "100", "8,70000"]);
        let run = support::finish_within(&mut command, LIMIT).assert_success();
        let lines: Vec<Vec<&str>> = run.stdout.lines().map(|line| line.split(' ').collect()).collect();
        let kernel = format!("{way}+kernel");
        let expected = [[way, "8"], [way, "70000"], [&*kernel, "8"]];
        assert!(lines.iter().map(|line| &line[..2]).eq(expected.iter().map(|line| &line[..])), "{run:?}");
        let time = |line: &[&str]| line[2].parse::<f64>().expect("a time");
        assert!(lines.iter().all(|line| line.len() == 5 && time(line) > 0.0), "{run:?}");
        assert!(time(&lines[2]) > 100.0, "the kernel is in each step: {run:?}");
    }
}

#[test]
fn another_pml_is_an_error() {
    let mut command = support::mpirun_as_is(1);
    command.args(["--mca", "pml", "ob1"]).arg(support::program("streams_absent"));
    let run = support::finish_within(&mut command, LIMIT).assert_success();
    let said = run.stdout + &run.stderr;
    assert!(said.contains("refused"), "{said}");
    assert!(said.contains("MPIX_Send_enqueue: Open MPI does not use Cableway's component as its pml"), "{said}");
    assert!(said.contains("MPIX_Stream_free: MPI is not initialized, or finalized"), "{said}");
}
