//! Device memory for tests.

use cableway_base::Parameters;
use cableway_common_cuda::Devices;

/// Devices of the simulated driver, or of the one that `CABLEWAY_CUDA_LIBDIR` names; with `CABLEWAY_TEST_REAL_DRIVER=1` of
/// the one that the loader finds. Nothing is measured, nor kept in anybody's home.
///
/// # Panics
/// There is no such driver, or the tests are built without devices.
pub fn devices() -> Devices {
    devices_with(&["device_costs=default"])
}

/// The same with these parameters alone.
///
/// # Panics
/// Likewise, and where there is no such parameter.
pub fn devices_with(assignments: &[&str]) -> Devices {
    let mut parameters = Parameters::default();
    for assignment in assignments {
        parameters.assign_internal(assignment).expect("a parameter");
    }
    let devices = Devices::open_in(sim_cuda::tested_folder().as_deref(), &parameters);
    devices.initialise().expect("there is a driver");
    devices
}
