//! Calls of the driver that [`sim_cuda::library_folder`] names: the simulated one, or a real one that
//! `CABLEWAY_CUDA_LIBDIR` names.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::c_char;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = sim_cuda::library_folder().expect("the build leaves the library beside the tests");
        // SAFETY: a driver's initialisers ask nothing of the process.
        unsafe { Library::open(Some(folder.join("libcuda.so.1")), RTLD_NOW | RTLD_LOCAL) }.expect("the driver loads")
    })
}

/// Calls a symbol of the driver. The types of the arguments are those of its parameters.
#[macro_export]
macro_rules! cu {
    (@hole $argument:expr) => { _ };
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the type is that of the arguments, which the test writes as the driver's documentation has them; its
        // pointers are to variables of the test.
        let function = unsafe {
            $crate::common::library()
                .get::<extern "C" fn($($crate::cu!(@hole $argument)),*) -> i32>(concat!(stringify!($name), "\0").as_bytes())
        };
        function.expect("the symbol is there")($($argument),*)
    }};
}

/// As [`cu!`], but the call must succeed.
#[macro_export]
macro_rules! ok {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::cu!($name($($argument),*)), 0, stringify!($name))
    };
}

/// A driver with a current context of device 0 in this thread, during the life of the value.
pub(crate) struct Session {
    pub(crate) context: usize,
}

impl Session {
    pub(crate) fn begin() -> Session {
        ok!(cuInit(0_u32));
        let mut context = 0_usize;
        ok!(cuDevicePrimaryCtxRetain(&raw mut context, 0));
        ok!(cuCtxSetCurrent(context));
        Session { context }
    }

    pub(crate) fn alloc(&self, len: usize) -> u64 {
        let mut address = 0_u64;
        ok!(cuMemAlloc_v2(&raw mut address, len));
        address
    }

    /// Allocates host memory by the driver. The test frees it, or the process ends.
    pub(crate) fn pinned(&self, len: usize) -> &'static mut [u8] {
        let mut address = 0_usize;
        ok!(cuMemHostAlloc(&raw mut address, len, 1_u32));
        // SAFETY: fresh memory of `len` bytes, which only its test touches and frees.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }
    }

    pub(crate) fn stream(&self, flags: u32) -> usize {
        let mut stream = 0_usize;
        ok!(cuStreamCreate(&raw mut stream, flags));
        stream
    }

    pub(crate) fn event(&self) -> usize {
        let mut event = 0_usize;
        ok!(cuEventCreate(&raw mut event, 2_u32));
        event
    }

    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0_u8; len];
        ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr(), address, len));
        bytes
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        ok!(cuMemcpyHtoD_v2(address, bytes.as_ptr(), bytes.len()));
        ok!(cuCtxSynchronize());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        cu!(cuDevicePrimaryCtxRelease_v2(0));
    }
}

pub(crate) fn device_count() -> i32 {
    ok!(cuInit(0_u32));
    let mut count = 0_i32;
    ok!(cuDeviceGetCount(&raw mut count));
    count
}

/// Returns whether the driver is the simulated one.
pub(crate) fn is_simulated() -> bool {
    // SAFETY: only looked up.
    unsafe { library().get::<unsafe extern "C" fn(*const c_char) -> i64>(b"simCudaCallCount\0") }.is_ok()
}

pub(crate) fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|index| ((index * 7 + salt) % 251) as u8).collect()
}

const CHILD: &str = "SIM_CUDA_TEST_CHILD";

/// Runs `body` in a separate process with `environment`, because a driver reads variables only once. The child finds
/// the calling test by its name `test`.
pub(crate) fn in_child(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if let Some(output) = child(test, environment, body) {
        assert!(
            output.status.success(),
            "{test} in its own process: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// As [`in_child`]. Returns whether a signal ended the process. Within the child it returns only if no signal did.
pub(crate) fn child_dies(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> bool {
    child(test, environment, body).is_some_and(|output| output.status.signal().is_some())
}

fn child(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(CHILD).is_some_and(|name| name == *test) {
        body();
        return None;
    }
    let output = Command::new(std::env::current_exe().expect("the test's own path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output();
    Some(output.expect("the test starts again"))
}

/// Starts a process that runs `test` of this executable. The process gets `argument` from [`partner`].
pub(crate) fn start_partner(test: &str, argument: &str) -> Child {
    Command::new(std::env::current_exe().expect("the test's own path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, argument)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test starts again")
}

/// Returns the argument, in a process that [`start_partner`] started.
pub(crate) fn partner() -> Option<String> {
    std::env::var(CHILD).ok()
}
