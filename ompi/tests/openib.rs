//! The component over verbs alone, if this machine has a device and the component the feature `openib`.

mod support;

use std::process::Command;
use std::time::Duration;

/// An emulated machine with an emulated device is slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// The time limit for detecting a peer's death. Emulated processes may pause for seconds.
const PEER_TIMEOUT: &str = "20s";

/// Returns the reason why the tests are skipped, if any.
fn lacking() -> Option<&'static str> {
    let object = std::fs::read(support::object()).expect("the object can be read");
    let named = object.windows(9).any(|bytes| bytes == b"ibverbs.s");
    assert_eq!(named, cfg!(feature = "openib"), "a component names libibverbs if it was built with the feature openib");
    if !named {
        return Some("the component was built without the feature openib");
    }
    let device = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some());
    (!device).then_some("this machine has no verbs device (tests/rxe-guest/run emulates one that has)")
}

/// Returns `mpirun` with this many ranks that use verbs only.
fn over_verbs(ranks: u32) -> Command {
    let mut command = support::mpirun(ranks);
    command.args(["--mca", "pml_cableway_btl", "openib", "--mca", "pml_cableway_peer_timeout", PEER_TIMEOUT]);
    command
}

fn succeeds(command: &mut Command) -> support::Finished {
    support::finish_within(command, PATIENCE).assert_success()
}

fn program_over_verbs(ranks: u32, name: &str, arguments: &[&str]) {
    match lacking() {
        Some(reason) => support::skip(reason),
        None => drop(succeeds(over_verbs(ranks).arg(support::program(name)).args(arguments))),
    }
}

/// On the simulated driver, or on the one that `CABLEWAY_CUDA_LIBDIR` names.
fn device_memory_over_verbs(name: &str) {
    if let Some(reason) = lacking() {
        return support::skip(reason);
    }
    let mut command = over_verbs(2);
    command.args(["-x", &format!("CABLEWAY_CUDA_LIBDIR={}", support::driver().display())]);
    succeeds(command.arg(support::program(name)));
}

#[test]
fn messages_travel_over_verbs() {
    if let Some(reason) = lacking() {
        return support::skip(reason);
    }
    let mut command = over_verbs(2);
    command.args(["--mca", "pml_cableway_explain", "1"]).arg(support::program("ring"));
    let said = succeeds(&mut command).stderr;
    assert!(said.contains("# Over openib"), "{said}");
}

#[test]
fn neighbours_exchange_messages_of_every_size() {
    program_over_verbs(3, "ring", &[]);
}

#[test]
fn requests_may_be_freed_cancelled_and_restarted() {
    program_over_verbs(2, "requests", &[]);
}

#[test]
fn derived_types_arrive_as_mpi_pack_defines() {
    program_over_verbs(2, "types", &[]);
}

#[test]
fn many_threads_send_at_once() {
    program_over_verbs(2, "threads", &[]);
}

#[test]
fn processes_of_several_jobs_connect() {
    program_over_verbs(2, "dynamic", &[]);
}

#[test]
fn device_memory_is_sent_in_every_pairing_and_mode() {
    device_memory_over_verbs("device");
}

#[test]
fn many_threads_use_device_memory_at_once() {
    device_memory_over_verbs("device_threads");
}

#[test]
fn truncation_is_an_error_of_its_class() {
    program_over_verbs(2, "errors", &["truncated"]);
}

#[test]
fn finalize_does_not_wait_for_unmatched_operations() {
    program_over_verbs(2, "errors", &["unfinished"]);
}

#[test]
fn operations_on_a_killed_rank_fail() {
    if let Some(reason) = lacking() {
        return support::skip(reason);
    }
    let mut command = over_verbs(2);
    command.arg("--enable-recovery").arg(support::program("errors")).arg("killed");
    let run = support::finish_within(&mut command, PATIENCE);
    assert!(run.stdout.contains("all three failed with an error"), "{run:?}");
}

#[test]
fn netpipe_finds_every_byte() {
    if let Some(reason) = lacking() {
        return support::skip(reason);
    }
    if !support::has_netpipe() {
        return support::skip(support::NO_NETPIPE);
    }
    support::netpipe(&mut over_verbs(2), 1 << 20, &[], PATIENCE);
}
