//! Counts of the simulated driver's calls.

use std::error::Error;
use std::ffi::{CStr, c_char};

type Count = unsafe extern "C" fn(*const c_char) -> i64;

/// The counts of the driver that this process has loaded.
pub(crate) struct DriverCalls {
    count: Count,
    _library: libloading::Library,
}

impl DriverCalls {
    /// Finds the counts. Fails if the driver is a real one.
    pub(crate) fn find() -> Result<DriverCalls, Box<dyn Error>> {
        let vendor = sim_cuda::Vendor::tested();
        let name: &CStr = match vendor {
            sim_cuda::Vendor::Nvidia => c"simCudaCallCount",
            sim_cuda::Vendor::Amd => c"simHipCallCount",
        };
        let path = vendor.folder().ok_or("there is no simulated driver")?.join(vendor.library());
        // SAFETY: the driver is loaded already, so no initialisers run. Its function has this signature.
        unsafe {
            let library = libloading::Library::new(path)?;
            let count = *library.get::<Count>(name.to_bytes_with_nul())?;
            Ok(DriverCalls { count, _library: library })
        }
    }

    /// Returns how often all functions were called.
    pub(crate) fn all(&self) -> i64 {
        // SAFETY: null asks for the sum.
        unsafe { (self.count)(std::ptr::null()) }
    }

    /// Returns how often the driver was asked about an address.
    pub(crate) fn questions(&self) -> i64 {
        let names: &[&CStr] = match sim_cuda::Vendor::tested() {
            sim_cuda::Vendor::Nvidia => &[c"cuPointerGetAttributes"],
            sim_cuda::Vendor::Amd => &[c"hipPointerGetAttributes", c"hipPointerGetAttribute"],
        };
        // SAFETY: terminated names.
        names.iter().map(|name| unsafe { (self.count)(name.as_ptr()) }).sum()
    }
}
