//! Device memory in point-to-point calls, on the simulated driver or on the one that `CABLEWAY_CUDA_LIBDIR` names.

mod support;

use std::process::Command;

fn with_driver(ranks: u32) -> Command {
    let mut command = support::mpirun(ranks);
    let folder = sim_cuda::library_folder().expect("cargo lays the simulated driver beside the tests");
    command.args(["-x", &format!("CABLEWAY_CUDA_LIBDIR={}", folder.display())]);
    command
}

#[test]
fn device_memory_is_sent_in_every_pairing_and_mode() {
    support::finish(with_driver(2).arg(support::program("device"))).assert_success();
}

#[test]
fn finalize_works_after_the_device_was_reset() {
    support::finish(with_driver(2).arg(support::program("device")).arg("reset")).assert_success();
}

#[test]
fn device_memory_is_sent_over_sockets() {
    let mut command = with_driver(2);
    command.args(["--mca", "pml_cableway_btl", "self,tcp"]).arg(support::program("device"));
    support::finish(&mut command).assert_success();
}

#[test]
fn many_threads_use_device_memory_at_once() {
    for ranks in 1..=3 {
        support::finish(with_driver(ranks).arg(support::program("device_threads"))).assert_success();
    }
}
