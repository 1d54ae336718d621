//! NetPIPE's integrity check: messages of all sizes, each a little more and less than a power of two, every byte looked at
//! by a program that is not ours.

mod support;

use std::process::Command;

/// The name that Debian gives NetPIPE over Open MPI.
const NETPIPE: &str = "NPopenmpi";

fn every_size_arrives(options: &[&str]) {
    if Command::new("sh")
        .args(["-c", &format!("command -v {NETPIPE}")])
        .output()
        .is_ok_and(|found| !found.status.success())
    {
        return support::skip("there is no NetPIPE (apt-get install netpipe-openmpi)");
    }
    // As it comes; receives posted before; synchronous sends; from anybody.
    for mode in [&[][..], &["-a"], &["-S"], &["-z"]] {
        let mut command = support::mpirun(2);
        command.args(options).arg(NETPIPE).args(["-i", "-n", "3", "-u", "4194304", "-o", "/dev/null"]).args(mode);
        let run = support::finish(&mut command).assert_success();
        let said = run.stdout + &run.stderr;
        // The other rank's words may stand in the midst of a line.
        let (sizes, passed) = (said.matches(" times -->").count(), said.matches("Integrity check passed").count());
        assert!(sizes > 30 && passed == sizes, "{mode:?}, {passed} of {sizes}: {said}");
    }
}

#[test]
fn netpipe_finds_every_byte_over_shared_memory() {
    every_size_arrives(&["--mca", "pml_cableway_btl", "self,sm"]);
}

#[test]
fn netpipe_finds_every_byte_over_sockets() {
    every_size_arrives(&["--mca", "pml_cableway_btl", "self,tcp"]);
}
