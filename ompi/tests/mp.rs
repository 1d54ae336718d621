//! LibMP's interface, on the simulated driver or on the one that `CABLEWAY_CUDA_LIBDIR` names.

mod support;

use std::time::Duration;

/// Only a hang takes so long.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn libmps_calls_move_ordered_data_and_refuse_what_is_wrong() {
    for level in ["single", "multiple"] {
        let mut command = support::mpirun(2);
        command.env("CABLEWAY_CUDA_LIBDIR", support::driver()).arg(support::program("mp")).arg(level);
        let run = support::finish_within(&mut command, LIMIT).assert_success();
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
        // Of each process and pass: three sizes with three ping-pongs, prepared messages, one-sided operations and sends
        // after puts, and what is left.
        support::assert_checked(&run, 2 * 2 * (3 * (3 * 12 + 12 + 8 + 12) + 4 + 2));
        let said = run.stdout + &run.stderr;
        for reason in [
            "mp_isend: mp_init was not called, or mp_finalize was",
            "mp_init: there is no rank 2: the communicator has 2",
            "mp_init: it was called before: call mp_finalize first",
            "mp_desc_queue_add_wait_send: the request was prepared with MP_PUT_NOWAIT",
            "mp_isend: 5 bytes at",
            "mp_wait: the request is NULL, or was waited for",
            "mp_wait: the request was prepared and not posted",
            "mp_isend_post_on_stream: the request has started: prepare another",
            "mp_wait32_on_stream: no device reaches the word at",
            "mp_wait32: the word at",
            "leave MP_PUT_INLINE out",
        ] {
            assert!(said.contains(reason), "{reason}: {said}");
        }
        assert!(!said.contains("mp_finalize:"), "{said}");
    }
}

#[test]
fn another_pml_is_an_error() {
    let mut command = support::mpirun_as_is(1);
    command.args(["--mca", "pml", "ob1"]).arg(support::program("mp_absent"));
    let run = support::finish_within(&mut command, LIMIT).assert_success();
    let said = run.stdout + &run.stderr;
    assert!(said.contains("refused"), "{said}");
    assert!(said.contains("mp_init: Open MPI does not use Cableway's component as its pml"), "{said}");
    assert!(said.contains("mp_init: MPI is not initialized, or finalized"), "{said}");
}
