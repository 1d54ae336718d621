//! Device memory for tests.

use cableway_base::Parameters;
use cableway_common_cuda::Devices;

/// Devices of the simulated driver, or of the one that `CABLEWAY_CUDA_LIBDIR` names; with `CABLEWAY_TEST_REAL_DRIVER=1` of
/// the one that the loader finds.
///
/// # Panics
/// There is no such driver, or the tests are built without devices.
pub fn devices() -> Devices {
    let devices = Devices::open_in(sim_cuda::tested_folder().as_deref(), &Parameters::default());
    devices.initialise().expect("there is a driver");
    devices
}
