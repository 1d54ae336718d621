//! Shared parts of the tests: the driver to use, and separate processes for tests that break a context or inject
//! faults.
//!
//! The driver is the one in `CABLEWAY_CUDA_LIBDIR`, else the simulated one. With `CABLEWAY_TEST_REAL_DRIVER=1` it is
//! the one that the loader finds.

#![allow(dead_code, reason = "each test executable uses some of it")]

pub(crate) mod app;

use std::process::Command;
use std::sync::Mutex;

use cableway_base::Parameters;
use cableway_common_cuda::{BufferKind, Devices};

pub(crate) use app::App;
pub(crate) use sim_cuda::tested_folder as folder;

/// The application's initialised driver.
pub(crate) fn app() -> App {
    let app = App::load(folder().as_deref()).expect("there is a driver");
    app.cuInit(0).expect("the driver has devices");
    app
}

/// Opens the devices of that driver with the default parameters, except that nothing is measured or stored in a home
/// folder.
pub(crate) fn devices() -> Devices {
    devices_with(&[])
}

/// Waits until kernels are loaded, which waits for the default stream.
pub(crate) fn wait_for_kernels(are_loaded: impl Fn() -> bool) {
    for _ in 0..10_000_000 {
        if are_loaded() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("the kernels are not loaded");
}

pub(crate) fn parameters(assignments: &[&str]) -> Parameters {
    let mut parameters = Parameters::default();
    // On a busy machine copies of the simulated driver take as long as a turn.
    for assignment in [&["costs=default", "device_turn_latency=1s"], assignments].concat() {
        parameters.assign_internal(assignment).unwrap();
    }
    parameters
}

pub(crate) fn devices_with(assignments: &[&str]) -> Devices {
    let devices = Devices::open_in(folder().as_deref(), &parameters(assignments));
    devices.initialise().unwrap();
    devices
}

const CHILD: &str = "CABLEWAY_TEST_CHILD";

/// Runs the calling test's body in a separate process with these variables (an empty value removes one).
pub(crate) fn isolated(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    isolated_each(test, &[variables], |_| body());
}

/// Runs the calling test's body in a separate process for each set of variables. The body receives the index of the
/// set.
pub(crate) fn isolated_each(test: &str, cases: &[&[(&str, &str)]], body: impl FnOnce(usize)) {
    if let Some(case) =
        std::env::var(CHILD).ok().and_then(|child| child.strip_prefix(test)?.strip_prefix('/')?.parse().ok())
    {
        // A hanging test in the child would hang the parent, too.
        // SAFETY: ends this process, whose only purpose is the test.
        unsafe { libc::alarm(120) };
        return body(case);
    }
    for (case, variables) in cases.iter().enumerate() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, format!("{test}/{case}"));
        for (name, value) in *variables {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        let output = command.output().unwrap();
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "{test} in its own process with {variables:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Returns the kinds of memory that Cableway allocates on devices of the tested vendor.
pub(crate) fn kinds() -> Vec<BufferKind> {
    match sim_cuda::Vendor::tested() {
        sim_cuda::Vendor::Nvidia => BufferKind::ALL.to_vec(),
        sim_cuda::Vendor::Amd => vec![BufferKind::Device, BufferKind::Pool, BufferKind::Managed, BufferKind::Pinned],
    }
}

/// Checks whether faults can be injected. If not, prints why the test is skipped.
pub(crate) fn on_simulated_driver(test: &str) -> bool {
    let simulated = app().simulated();
    if !simulated {
        eprintln!("skipped {test}: faults are injected into the simulated driver only");
    }
    simulated
}

/// Returns bytes that depend on their position and a seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9).wrapping_add(seed * 0x85EB_CA6B) >> 7) as u8).collect()
}

/// Collects all later log lines of this process, as `LEVEL message`.
pub(crate) fn collect_log() -> &'static Mutex<Vec<String>> {
    struct Collector(Mutex<Vec<String>>);
    impl log::Log for Collector {
        fn enabled(&self, _: &log::Metadata) -> bool {
            true
        }
        fn log(&self, record: &log::Record) {
            self.0.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
        }
        fn flush(&self) {}
    }
    static COLLECTOR: Collector = Collector(Mutex::new(Vec::new()));
    log::set_logger(&COLLECTOR).expect("the first in this process");
    log::set_max_level(log::LevelFilter::Info);
    &COLLECTOR.0
}
