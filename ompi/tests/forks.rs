//! Programs that fork without executing another program.

mod support;

use std::time::Duration;

/// Runs the program over each transport. The program writes its result to a file, because mpirun may lose output.
fn over_every_transport(what: &str, expected: &str) {
    for transport in ["sm", "tcp"] {
        let result = support::scratch().join(format!("forks-{what}-{transport}-{}", std::process::id()));
        let mut command = support::mpirun(2);
        command.args(["--enable-recovery", "--mca", "pml_cableway_btl", transport]);
        command.arg(support::program("forks")).arg(what).arg(&result);
        let run = support::finish_within(&mut command, Duration::from_secs(50));
        let said = std::fs::read_to_string(&result).unwrap_or_default();
        assert_eq!(said, expected, "{transport}: {run:?}");
        let _ = std::fs::remove_file(&result);
    }
}

#[test]
fn operations_on_a_killed_rank_fail_while_its_child_lives() {
    over_every_transport("killed", "noticed while the child lived");
}

#[test]
fn children_that_call_exit_do_no_harm() {
    over_every_transport("children", "no child did harm");
}
