//! Device memory in the parts of Open MPI 5.0 that use its accelerator framework. Open MPI 4.1 has no such framework.

mod support;

use std::path::Path;

#[test]
fn device_memory_is_packed_reduced_and_replaced() {
    if support::major_version() < 5 {
        return support::skip("Open MPI 4.1 has no accelerator framework");
    }
    let folder = support::driver();
    let driver = folder.join("libcuda.so.1");
    for ranks in 1..=2 {
        run(ranks, &folder, &driver);
    }
}

fn run(ranks: u32, folder: &Path, driver: &Path) {
    let mut command = support::mpirun(ranks);
    command.env("CABLEWAY_CUDA_LIBDIR", folder).arg(support::program("accelerator")).arg(driver);
    let finished = support::finish(&mut command).assert_success();
    assert!(finished.stdout.contains("done"), "{finished:?}");
}
