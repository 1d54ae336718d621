//! dma-bufs for network devices, by the library below HIP (`libhsa-runtime64`), which exports them since 5.6.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};

use cableway_base::root_cause;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::direct::owned;
use crate::driver::{DmaBuf, Failure, FailureKind};

const LIBRARY: &str = "libhsa-runtime64.so.1";
const EXPORT: &str = "hsa_amd_portable_export_dmabuf";

/// `hsa_amd_portable_export_dmabuf` of hsa_ext_amd.h. It returns an `hsa_status_t`, 0 for success.
type Export = unsafe extern "C" fn(*const c_void, usize, *mut c_int, *mut u64) -> c_int;

/// The function that exports dma-bufs.
pub(super) struct Exporter(Export);

/// Finds the library beside HIP's, else the one that the process has loaded with it.
pub(super) fn find(hip: &Path, simulated: bool) -> Result<Exporter, String> {
    let beside = hip.parent().map(|folder| folder.join(LIBRARY)).filter(|path| path.exists());
    let (path, flags) = match beside {
        Some(path) => (path, RTLD_NOW | RTLD_LOCAL),
        // Do not mix a double with a real library.
        None if simulated => return Err(format!("there is no {LIBRARY}")),
        None => (PathBuf::from(LIBRARY), RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD),
    };
    // SAFETY: the library that HIP's own has loaded.
    let library = unsafe { Library::open(Some(&path), flags) }.map_err(|error| root_cause(&error))?;
    // SAFETY: the signature that its header gives this name.
    let export = *unsafe { library.get::<Export>(EXPORT) }.map_err(|_| format!("{LIBRARY} has no {EXPORT}"))?;
    std::mem::forget(library);
    Ok(Exporter(export))
}

impl Exporter {
    /// Exports whole pages.
    pub(super) fn export(&self, address: u64, len: usize) -> Result<DmaBuf, Failure> {
        let (mut descriptor, mut offset) = (-1, 0);
        let place: *const c_void = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: fills in a descriptor and an offset; the library checks the range.
        let status = unsafe { (self.0)(place, len, &raw mut descriptor, &raw mut offset) };
        let descriptor = owned(descriptor).filter(|_| status == 0);
        let descriptor = descriptor.ok_or(Failure::found(EXPORT, FailureKind::NotSupported))?;
        Ok(DmaBuf { descriptor, offset })
    }
}
