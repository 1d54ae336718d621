//! Finding the library and binding its functions.
//!
//! The library is chosen as CUDA's driver is: `CABLEWAY_HIP_LIBDIR` names a folder, or the program has loaded the
//! library, or [`Devices::initialise`](crate::Devices::initialise) loads it by the loader's own search. Its file name
//! ends with the major release. A bound library is never unloaded.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::os::unix::Library;
use parking_lot::Mutex;

use super::direct::{self, Exporter};
use super::release::Release;
use super::table::Table;
use crate::driver::{self, Driver, Failure, FailureKind};
use crate::loader::path_of;

/// The names that the library may have.
pub(super) const LIBRARIES: &[&str] = &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

/// The releases that the rows of the table were checked with.
const MAJORS: std::ops::RangeInclusive<c_int> = 5..=7;

/// The library and its functions.
pub(super) struct HipDriver {
    table: Table,
    error_name: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
    pub(super) release: Release,
    pub(super) library: driver::Library,
    /// The number of devices, plus 1 once it is known. It never changes.
    count: AtomicU32,
    /// How dma-bufs are exported.
    exporter: OnceLock<Result<Exporter, String>>,
    /// Distinguishes libraries that are loaded at the same time.
    identity: usize,
}

impl Deref for HipDriver {
    type Target = Table;
    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Driver for HipDriver {
    fn code_name(&self, failure: Failure) -> String {
        // SAFETY: any code is allowed; the answer is a static string or null.
        let name = self.error_name.map_or(std::ptr::null(), |name| unsafe { name(failure.code) });
        if name.is_null() {
            return format!("error {}", failure.code);
        }
        // SAFETY: a static, terminated string of the library's.
        let name = unsafe { CStr::from_ptr(name) };
        format!("{} ({})", name.to_string_lossy(), failure.code)
    }
}

impl HipDriver {
    pub(super) fn bind(library: Library) -> Result<&'static HipDriver, String> {
        // Two bindings of one library would create separate streams. The lock makes check and push atomic.
        static BOUND: Mutex<Vec<&'static HipDriver>> = Mutex::new(Vec::new());
        let symbol = |name: &str| -> *mut c_void {
            // SAFETY: only the address is taken here; its use is `Table::fill`'s affair.
            unsafe { library.get::<*mut c_void>(name) }.map_or(std::ptr::null_mut(), |symbol| symbol.as_raw_ptr())
        };
        let get_version = symbol("hipRuntimeGetVersion");
        if get_version.is_null() {
            return Err("it has no hipRuntimeGetVersion".to_owned());
        }
        let mut bound = BOUND.lock();
        if let Some(driver) = bound.iter().find(|driver| driver.identity == get_version as usize) {
            return Ok(driver);
        }
        let mut version: c_int = 0;
        // SAFETY: the function has this signature in every release.
        let code = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(get_version)(&raw mut version)
        };
        let release = Release(version);
        if code != 0 {
            return Err(format!("hipRuntimeGetVersion returns {code}"));
        }
        if !MAJORS.contains(&release.major()) {
            return Err(format!("it is HIP {}, and {} to {} are known", release.text(), MAJORS.start(), MAJORS.end()));
        }
        let error_name = Some(symbol("hipGetErrorName")).filter(|address| !address.is_null());
        let driver: &'static HipDriver = Box::leak(Box::new(HipDriver {
            // SAFETY: the functions of these names; the library is leaked below.
            table: unsafe { Table::fill(symbol) }?,
            // SAFETY: the function has this signature in every release.
            error_name: error_name.map(|address| unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(address)
            }),
            release,
            library: driver::Library {
                vendor: crate::facts::Vendor::Amd,
                path: path_of(get_version).unwrap_or_else(|| PathBuf::from(LIBRARIES[LIBRARIES.len() - 1])),
                version: release.text(),
                simulated: !symbol("simHipCallCount").is_null(),
            },
            count: AtomicU32::new(0),
            exporter: OnceLock::new(),
            identity: get_version as usize,
        }));
        bound.push(driver);
        drop(bound);
        std::mem::forget(library);
        for name in driver.missing() {
            log::debug!("HIP {} has no {name}", release.text());
        }
        Ok(driver)
    }

    /// Returns the function that exports dma-bufs, or the reason why there is none.
    pub(super) fn exporter(&self) -> Result<&Exporter, &str> {
        let find = || direct::find(&self.library.path, self.library.simulated);
        self.exporter.get_or_init(find).as_ref().map_err(String::as_str)
    }

    /// Counts the devices. Without one, the library is as good as not initialised.
    #[inline]
    pub(super) fn count(&self) -> Result<u32, Failure> {
        match self.count.load(Ordering::Relaxed) {
            0 => self.count_devices(),
            counted => Ok(counted - 1),
        }
    }

    #[cold]
    fn count_devices(&self) -> Result<u32, Failure> {
        let mut count: c_int = 0;
        // SAFETY: fills in the count.
        unsafe { self.hipGetDeviceCount(&raw mut count) }?;
        // Functions of some releases dereference the current device, which does not exist then.
        let found = u32::try_from(count).ok().filter(|count| *count != 0);
        let count = found.ok_or(Failure::found("hipGetDeviceCount", FailureKind::NotInitialised))?;
        self.count.store(count + 1, Ordering::Relaxed);
        Ok(count)
    }
}
