//! Finding the driver library and binding its functions.
//!
//! The library is chosen as follows:
//! - `CABLEWAY_CUDA_LIBDIR` names a folder: the `libcuda.so.1` in it, loaded at once.
//! - Otherwise the library that the application has loaded. Cableway never loads the library for a process that has
//!   not: a program without a GPU must not pay for a driver. A program may also load it later (Python imports CuPy
//!   after `MPI_Init`). Cableway detects that, because glibc counts all objects that were ever loaded.
//! - [`Devices::initialise`](crate::Devices::initialise) loads it by the loader's own search. Programs call it for
//!   Cableway's own device buffers or the list of devices.
//!
//! A bound library is never unloaded.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Deref;
use std::path::PathBuf;

use libloading::os::unix::Library;
use parking_lot::Mutex;

use super::table::{Row, Table};
use crate::driver::{self, Driver, Failure};
use crate::loader::path_of;

/// The name that every driver library carries.
pub(super) const LIBRARY: &str = "libcuda.so.1";

/// A driver library and its functions.
pub(super) struct CudaDriver {
    table: Table,
    /// As `cuDriverGetVersion` counts: 12020 is 12.2.
    pub(super) version: c_int,
    pub(super) library: driver::Library,
    /// Distinguishes libraries that are loaded at the same time.
    identity: usize,
}

impl Deref for CudaDriver {
    type Target = Table;
    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Driver for CudaDriver {
    fn code_name(&self, failure: Failure) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the pointer is written with the address of a static string, or left null.
        let named = unsafe { self.cuGetErrorName(failure.code, &raw mut name) };
        if named.is_err() || name.is_null() {
            return format!("error {}", failure.code);
        }
        // SAFETY: a static, terminated string of the driver's.
        let name = unsafe { CStr::from_ptr(name) };
        format!("{} ({})", name.to_string_lossy(), failure.code)
    }
}

impl CudaDriver {
    pub(super) fn bind(library: Library) -> Result<&'static CudaDriver, String> {
        // Two bindings of one library would create separate streams. The lock makes check and push atomic.
        static BOUND: Mutex<Vec<&'static CudaDriver>> = Mutex::new(Vec::new());
        let symbol = |name: &str| -> *mut c_void {
            // SAFETY: only the address is taken here; its use is `Table::fill`'s affair.
            unsafe { library.get::<*mut c_void>(name) }.map_or(std::ptr::null_mut(), |symbol| symbol.as_raw_ptr())
        };
        let get_version = symbol("cuDriverGetVersion");
        if get_version.is_null() {
            return Err("it has no cuDriverGetVersion".to_owned());
        }
        let mut bound = BOUND.lock();
        if let Some(driver) = bound.iter().find(|driver| driver.identity == get_version as usize) {
            return Ok(driver);
        }
        let mut version: c_int = 0;
        // SAFETY: the function has had this signature since CUDA 2.2, and needs no initialised driver.
        let code = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(get_version)(&raw mut version)
        };
        if code != 0 {
            return Err(format!("cuDriverGetVersion returns {code}"));
        }
        let find = Finder::new(version, &symbol);
        let driver: &'static CudaDriver = Box::leak(Box::new(CudaDriver {
            // SAFETY: `Finder` returns the function of the row's name and version; the library is leaked below.
            table: unsafe { Table::fill(|row| find.address(row)) },
            version,
            library: driver::Library {
                vendor: crate::facts::Vendor::Nvidia,
                path: path_of(get_version).unwrap_or_else(|| PathBuf::from(LIBRARY)),
                version: version_text(version),
                simulated: !symbol("simCudaCallCount").is_null(),
            },
            identity: get_version as usize,
        }));
        bound.push(driver);
        drop(bound);
        std::mem::forget(library);
        for row in driver.missing() {
            log::debug!("driver {} has no {}", version_text(version), row.name);
        }
        Ok(driver)
    }
}

/// Formats a version as in the vendor's documents.
pub(super) fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Looks up rows in one library.
struct Finder<'l> {
    version: c_int,
    symbol: &'l dyn Fn(&str) -> *mut c_void,
    lookup: Option<Lookup>,
}

/// `cuGetProcAddress` in its two signatures.
enum Lookup {
    V1(GetProcAddressV1),
    V2(GetProcAddressV2),
}
type GetProcAddressV1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
type GetProcAddressV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

impl<'l> Finder<'l> {
    fn new(version: c_int, symbol: &'l dyn Fn(&str) -> *mut c_void) -> Self {
        let (v1, v2) = (symbol("cuGetProcAddress"), symbol("cuGetProcAddress_v2"));
        let lookup = if version >= 12000 && !v2.is_null() {
            // SAFETY: the signature of this exported name since 12.0.
            Some(Lookup::V2(unsafe { std::mem::transmute::<*mut c_void, GetProcAddressV2>(v2) }))
        } else if version >= 11030 && !v1.is_null() {
            // SAFETY: the signature of this exported name since 11.3.
            Some(Lookup::V1(unsafe { std::mem::transmute::<*mut c_void, GetProcAddressV1>(v1) }))
        } else {
            None
        };
        Finder { version, symbol, lookup }
    }

    fn address(&self, row: &Row) -> *mut c_void {
        if self.version < row.since {
            return std::ptr::null_mut();
        }
        let Some(lookup) = &self.lookup else { return (self.symbol)(row.exported) };
        // Use the variants with the legacy default stream. A program selects the per-thread variants at compilation.
        const LEGACY_STREAM: u64 = 1;
        let Ok(name) = std::ffi::CString::new(row.name) else { return std::ptr::null_mut() };
        let mut address = std::ptr::null_mut();
        let mut found: c_int = 0;
        // SAFETY: a terminated name, and places for what is returned.
        let code = unsafe {
            match lookup {
                Lookup::V1(get) => get(name.as_ptr(), &raw mut address, row.since, LEGACY_STREAM),
                Lookup::V2(get) => get(name.as_ptr(), &raw mut address, row.since, LEGACY_STREAM, &raw mut found),
            }
        };
        if code == 0 && found == 0 { address } else { std::ptr::null_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row resolves on the present driver if that driver is new enough.
    #[test]
    fn every_row_of_the_table_is_in_the_driver() {
        let discovery = crate::cuda::Cuda::search();
        let real = std::env::var_os("CABLEWAY_TEST_REAL_DRIVER").is_some_and(|value| value == "1");
        let library = match sim_cuda::Vendor::Nvidia.folder() {
            Some(folder) if !real => folder.join(LIBRARY),
            _ => PathBuf::from(LIBRARY),
        };
        let driver = discovery.load(&library).unwrap();
        let missing: Vec<_> =
            driver.missing().into_iter().filter(|row| row.since <= driver.version).map(|row| row.name).collect();
        assert!(missing.is_empty(), "driver {} lacks {missing:?}", version_text(driver.version));
    }

    #[test]
    fn versions_are_formatted_as_documented() {
        assert_eq!(version_text(12020), "12.2");
        assert_eq!(version_text(13000), "13.0");
    }
}
