//! Device memory for tests.

use cableway_base::Parameters;
use cableway_common_cuda::Devices;

/// Returns the devices of the simulated driver, or of the one that `CABLEWAY_CUDA_LIBDIR` names. With
/// `CABLEWAY_TEST_REAL_DRIVER=1` returns those of the driver that the loader finds. Nothing is measured or stored in a
/// home folder.
///
/// # Panics
/// There is no such driver, or the tests are built without devices.
pub fn devices() -> Devices {
    devices_with(&["costs=default"])
}

/// As [`devices`], with these parameters.
///
/// # Panics
/// As [`devices`], or a parameter does not exist.
pub fn devices_with(assignments: &[&str]) -> Devices {
    let mut parameters = Parameters::default();
    // On a busy machine copies of the simulated driver take as long as a turn.
    for assignment in [&["device_turn_latency=1s"], assignments].concat() {
        parameters.assign_internal(assignment).expect("a parameter");
    }
    let devices = Devices::open_in(sim_cuda::tested_folder().as_deref(), &parameters);
    devices.initialise().expect("there is a driver");
    devices
}
