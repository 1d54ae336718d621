//! LibGDSync's interface and the calls of kernels, on the simulated driver or on the one that `CABLEWAY_CUDA_LIBDIR` names.

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Only a hang takes so long.
const LIMIT: Duration = Duration::from_secs(300);

fn run(program: &str, level: &str) -> support::Finished {
    let mut command = support::mpirun(2);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(support::program(program)).arg(level);
    let run = support::finish_within(&mut command, LIMIT).assert_success();
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    run
}

fn assert_says(run: &support::Finished, reasons: &[&str]) {
    let said = run.stdout.clone() + &run.stderr;
    for reason in reasons {
        assert!(said.contains(reason), "{reason}: {said}");
    }
    assert!(!said.contains("mp_finalize:"), "{said}");
}

#[test]
fn libgdsyncs_descriptors_are_performed_in_their_order() {
    for level in ["single", "multiple"] {
        let run = run("mp_gds", level);
        // Of each process: conditions, writes of bytes, three sizes of mixed descriptors and of requests, and what is left.
        support::assert_checked(&run, 2 * (5 + 3 * 6 + 3 * (2 + 4) + 4));
        assert_says(
            &run,
            &[
                "gds_alloc_mapped_memory: mp_init was not called, or mp_finalize was",
                "gds_prepare_wait_value32: desc is NULL",
                "gds_prepare_wait_value32: the word at",
                "gds_prepare_wait_value32: the condition is 4: use one of GDS_WAIT_COND_GEQ, EQ, AND and NOR",
                "gds_prepare_wait_value32: GDS_MEMORY_IO is memory of LibGDSync's network card",
                "gds_prepare_write_value32: flags are 0x3: give one of GDS_MEMORY_GPU and GDS_MEMORY_HOST",
                "gds_stream_post_descriptors: no device reaches the word at",
                "gds_stream_post_descriptors: there is no tag 5",
                "gds_stream_post_descriptors: the request was not prepared by gds_prepare_mp_send",
                "gds_stream_post_descriptors: the request of a descriptor is NULL",
                "gds_stream_post_send: the request has started: prepare another",
                "gds_post_descriptors: the memory at",
                "gds_prepare_send: there are no queue pairs of verbs here: use mp_send_prepare and gds_prepare_mp_send",
            ],
        );
    }
}

#[test]
fn a_kernel_starts_messages_and_waits_for_them() {
    for (level, more) in [("single", 0), ("multiple", 1)] {
        let run = run("mp_kernel", level);
        // Of each process: three sizes of a ping-pong of 20 steps, order, words and errors.
        support::assert_checked(&run, 2 * (3 * 20 + 3 + more));
        assert_says(
            &run,
            &[
                "mp_kernel_word: no device reaches the word at",
                "mp_kernel_send_descriptor: the request has started: prepare another",
                "mp_kernel_wait_descriptor: the request was prepared and not posted",
                "mp_kernel_wait_descriptor: the request is NULL, or was waited for",
            ],
        );
    }
}

/// Compiles the kernel of `mp_kernel.cc` for a device. Returns its PTX, or `None` if there is no compiler.
fn compiled(architecture: &str) -> Option<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let includes = Command::new("mpicc").arg("--showme:compile").output().expect("mpicc is there");
    let includes = String::from_utf8(includes.stdout).expect("mpicc says where MPI's header is");
    let mut clang = Command::new("clang++-19");
    clang.args(["-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "-std=c++14", "-O2"]);
    clang.args(["-Wall", "-Wextra", "-Werror", "-DOMPI_SKIP_MPICXX", "-S", "-o", "-"]);
    // The oldest version of PTX that the kernels of the library have, too.
    clang.args(["-Xclang", "-target-feature", "-Xclang", "+ptx63"]).arg(format!("--cuda-gpu-arch={architecture}"));
    clang.args(includes.split_whitespace()).arg("-I").arg(here.join("mp/include"));
    let output = match clang.arg(here.join("tests/programs/mp_kernel.cu")).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        output => output.unwrap_or_else(|error| panic!("{clang:?}: {error}")),
    };
    assert!(output.status.success(), "{clang:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("PTX is text"))
}

#[test]
fn the_calls_of_kernels_compile_for_devices_and_are_ordered() {
    let Some(volta) = compiled("sm_70") else {
        return support::skip("there is no clang++-19 (apt-get install clang-19), which compiles kernels");
    };
    assert!(volta.contains(".entry exchange_kernel("), "{volta}");
    assert!(volta.contains("ld.acquire.sys.u32") && volta.contains("st.release.sys.u32"), "{volta}");
    assert!(!volta.contains("volatile"), "{volta}");
    // Older devices have fences in place of ordered accesses.
    let Some(maxwell) = compiled("sm_52") else { panic!("the compiler has gone") };
    assert!(!maxwell.contains(".sys.u32"), "{maxwell}");
    for access in ["ld.volatile.u32", "st.volatile.u32"] {
        assert!(maxwell.contains(access) && maxwell.contains("membar.sys"), "{access}: {maxwell}");
    }
}

#[test]
fn a_kernel_learns_that_its_peer_was_killed() {
    let mut command = support::mpirun(2);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg("--enable-recovery");
    // mpirun loses the last lines of processes that end beside one that died.
    let (run, said) = support::run_apart(&mut command, 2, &support::program("mp_killed"), &[]);
    assert!(said[0].contains("the kernel and the host learnt of it"), "{run:?} {said:?}");
}

#[test]
fn a_kernel_does_not_wait_for_what_has_ended() {
    let mut command = support::mpirun(2);
    command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(support::program("mp_left"));
    let run = support::finish_within(&mut command, LIMIT).assert_success();
    let said = run.stdout + &run.stderr;
    assert!(said.contains("mp_finalize: 3 requests were not waited for"), "{said}");
}

#[test]
fn a_kernel_that_faults_ends_what_waits_for_it() {
    for part in ["seen", "all"] {
        let run = run("mp_faulted", part);
        support::assert_checked(&run, 2);
        if part == "seen" {
            continue;
        }
        assert_says(
            &run,
            &["mp_wait: the message will not start, because the context of its stream or kernel does no more work"],
        );
    }
}
