//! The driver of device tests. One test uses it at a time, because calls are counted for the whole process.

#![allow(dead_code, reason = "each test executable uses some of it")]

use std::ffi::{CStr, c_char};
use std::process::Command;

use cableway_base::Parameters;
use cableway_common_cuda::Devices;
use libloading::os::unix::Library;
use std::sync::{Mutex, MutexGuard, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The driver, while no other test uses it.
pub(crate) struct Driver {
    pub(crate) devices: Devices,
    /// Returns the number of calls of a function; `None` on a real driver.
    count: Option<unsafe extern "C" fn(*const c_char) -> i64>,
    _alone: MutexGuard<'static, ()>,
}

impl Driver {
    pub(crate) fn lock() -> Driver {
        Self::lock_with(&[])
    }

    /// Takes the driver with these parameters.
    pub(crate) fn lock_with(assignments: &[&str]) -> Driver {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = sim_cuda::tested_folder();
        let mut parameters = Parameters::default();
        // Nothing is measured or stored in a home folder.
        // On a busy machine copies of the simulated driver take as long as a turn.
        for assignment in [&["costs=default", "device_turn_latency=1s"], assignments].concat() {
            parameters.assign_internal(assignment).expect("a parameter");
        }
        let devices = Devices::open_in(folder.as_deref(), &parameters);
        devices.initialise().expect("the driver has devices");
        let library = sim_cuda::Vendor::tested().library();
        let path = folder.map_or(library.into(), |folder| folder.join(library));
        // SAFETY: the driver, which the process has loaded already.
        let library = unsafe { Library::new(path) }.expect("the driver is loaded");
        // SAFETY: the simulated driver exports it with this signature; a real one does not.
        let count = unsafe { library.get("simCudaCallCount").or_else(|_| library.get("simHipCallCount")) }
            .ok()
            .map(|symbol| *symbol);
        // The function must stay loaded for every test.
        std::mem::forget(library);
        Driver { devices, count, _alone: alone }
    }

    /// Returns the contiguous and 2-D copies so far.
    pub(crate) fn copies(&self) -> Option<(i64, i64)> {
        self.calls(c"cuMemcpyAsync").zip(self.calls(c"cuMemcpy2DAsync"))
    }

    /// Returns the pointer queries so far.
    pub(crate) fn queries(&self) -> Option<(i64, i64)> {
        self.calls(c"cuPointerGetAttribute").zip(self.calls(c"cuPointerGetAttributes"))
    }

    /// Returns the launched kernels so far.
    pub(crate) fn launches(&self) -> Option<i64> {
        self.calls(c"cuLaunchKernel").zip(self.calls(c"cuGraphLaunch")).map(|(alone, by_graph)| alone + by_graph)
    }

    /// Checks whether calls are counted and faults can be injected.
    pub(crate) fn is_simulated(&self) -> bool {
        self.count.is_some()
    }

    fn calls(&self, name: &CStr) -> Option<i64> {
        // SAFETY: a terminated name.
        self.count.map(|count| unsafe { count(name.as_ptr()) })
    }
}

/// Runs the body of the test `name` in a separate process, in which the driver fails as `fault` says.
pub(crate) fn with_fault(name: &str, fault: &str, body: impl FnOnce(&Driver)) {
    isolated(name, ("SIM_CUDA_FAIL", fault), || body(&Driver::lock()));
}

/// Runs the body of the test `name` in a separate process, with a variable for the simulated driver.
pub(crate) fn isolated(name: &str, (variable, value): (&str, &str), body: impl FnOnce()) {
    const CHILD: &str = "CABLEWAY_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    if !Driver::lock().is_simulated() {
        eprintln!("skipped {name}: {variable} is for the simulated driver only");
        return;
    }
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command.args([name, "--exact", "--test-threads=1"]).env(CHILD, "1").env(variable, value);
    let output = command.output().expect("the test can be started again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
