//! Device memory for tests.

use std::path::PathBuf;

use cableway_base::Parameters;
use cableway_common_cuda::{Devices, LIBDIR_VARIABLE};

/// Devices of the simulated driver, or of the one that `CABLEWAY_CUDA_LIBDIR` names; with `CABLEWAY_TEST_REAL_DRIVER=1` of
/// the one that the loader finds.
///
/// # Panics
/// There is no such driver, or the tests are built without devices.
pub fn devices() -> Devices {
    let real = std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some_and(|value| value == "1");
    let folder = (!real).then(|| match std::env::var_os(LIBDIR_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => sim_cuda::library_folder().expect("sim-cuda is built with the tests that use it"),
    });
    let devices = Devices::open_in(folder.as_deref(), &Parameters::default());
    devices.initialise().expect("there is a driver");
    devices
}
