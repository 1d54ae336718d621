//! MPI-IO with Open MPI's own component and with ROMIO. Both exchange data by messages.

mod support;

use std::path::PathBuf;
use std::process::Command;

fn components_of_mpi_io() -> Vec<String> {
    let output = Command::new("ompi_info").arg("--parsable").output().expect("ompi_info comes with mpirun");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found: Vec<_> =
        said.lines().filter_map(|line| line.strip_prefix("mca:io:")?.split(':').next().map(str::to_owned)).collect();
    found.dedup();
    found
}

#[test]
fn files_are_written_and_read_together() {
    let components = components_of_mpi_io();
    assert!(components.iter().any(|name| name == "ompio"), "ompi_info names {components:?}");
    if !components.iter().any(|name| name.starts_with("romio")) {
        support::skip("this Open MPI has no ROMIO");
    }
    for component in &components {
        for ranks in 1..=3 {
            let file: PathBuf = support::scratch().join(format!("file-{component}-{ranks}-{}", std::process::id()));
            let mut mpirun = support::mpirun(ranks);
            mpirun.args(["--mca", "io", component]).arg(support::program("files")).arg(&file);
            support::finish(&mut mpirun).assert_success();
            assert!(!file.exists(), "{component} left the file, which was to go as it was closed");
        }
    }
}
