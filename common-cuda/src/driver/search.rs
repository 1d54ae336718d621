//! The search for a vendor's driver library in this process.

use std::ffi::c_int;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway_base::root_cause;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::Driver;
use super::hardware::Hardware;
use crate::error::DeviceError;
use crate::loader::{LoadWatch, objects_loaded};

/// Finds a library that the process has loaded. Loads none.
const LOADED_ONLY: c_int = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NOLOAD;

/// A vendor, as the search for drivers sees it.
pub(crate) struct Searched<D: 'static> {
    pub(crate) name: &'static str,
    /// The file names that the driver library may have, the preferred one first.
    pub(crate) libraries: &'static [&'static str],
    pub(crate) hardware: &'static Hardware,
    /// Libraries that were loaded since the last search.
    pub(crate) loads: &'static LoadWatch,
    /// Binds the functions of a library.
    pub(crate) bind: fn(Library) -> Result<&'static D, String>,
}

/// The driver of this process, once it is found.
pub(crate) struct Search<D: 'static> {
    vendor: Searched<D>,
    driver: OnceLock<&'static D>,
    /// glibc's count of loaded objects at the last search that found no driver.
    looked_at: AtomicU64,
}

impl<D: Driver> Search<D> {
    pub(crate) fn new(vendor: Searched<D>) -> Search<D> {
        Search { vendor, driver: OnceLock::new(), looked_at: AtomicU64::new(0) }
    }

    /// Looks for the driver: in `folder` if one is given, else among the libraries of the process. Later calls look
    /// again if a driver is `expected`, or if the machine may have a device.
    pub(crate) fn begin(&self, folder: Option<&Path>, expected: bool) {
        let Searched { name, hardware, loads, .. } = &self.vendor;
        if let Some(folder) = folder
            && let Err(reason) = self.load_from(folder)
        {
            cableway_base::warn_once(&format!("{}/libdir/{}", name.to_lowercase(), folder.display()), || {
                format!("there is no usable {name} driver in {}: {reason}", folder.display())
            });
        }
        if self.driver().is_none() {
            loads.watch(|| self.is_absent());
        }
        if expected || hardware.may_be_here() {
            hardware.expect();
        }
    }

    /// Returns the driver if it is in this process. The call costs one load once the driver is found, and about 20 ns
    /// while it may still appear; frequent callers ask [`LoadWatch::no_driver`] first.
    #[inline]
    pub(crate) fn driver(&self) -> Option<&'static D> {
        match self.driver.get() {
            Some(driver) => Some(driver),
            None => self.look(),
        }
    }

    #[cold]
    fn look(&self) -> Option<&'static D> {
        // The first call finds a loaded driver, whatever hardware the machine has.
        if !self.vendor.hardware.is_expected() && self.looked_at.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let loaded = objects_loaded();
        if self.looked_at.load(Ordering::Relaxed) == loaded {
            return None;
        }
        let found = self.loaded();
        // Store it only after the search: a thread that reads the new count must not skip libraries that were not
        // searched.
        self.looked_at.store(loaded, Ordering::Relaxed);
        found
    }

    /// Searches again, and returns whether the driver is missing.
    pub(crate) fn is_absent(&self) -> bool {
        self.driver.get().is_none() && self.loaded().is_none()
    }

    /// Finds the library among those that the process has loaded.
    fn loaded(&self) -> Option<&'static D> {
        self.vendor.libraries.iter().find_map(|library| self.take(Path::new(library), LOADED_ONLY).ok())
    }

    /// Loads the library from a folder, under the first of its names that the folder has.
    fn load_from(&self, folder: &Path) -> Result<&'static D, String> {
        let paths = || self.vendor.libraries.iter().map(|library| folder.join(library));
        let path = paths().find(|path| path.exists()).or_else(|| paths().next());
        path.map_or_else(|| Err("the library has no name".to_owned()), |path| self.load(&path))
    }

    /// Loads the library by the loader's search, under the first of its names that the loader finds.
    pub(crate) fn load_by_name(&self) -> Result<&'static D, DeviceError> {
        let mut first = None;
        for library in self.vendor.libraries {
            match self.load(Path::new(library)) {
                Ok(driver) => return Ok(driver),
                Err(reason) => first = first.or(Some((library, reason))),
            }
        }
        let (object, reason) = first.map_or(Default::default(), |(name, reason)| ((*name).to_owned(), reason));
        Err(DeviceError { call: "dlopen", object, reason })
    }

    /// Loads the library of this name or path.
    pub(crate) fn load(&self, library: &Path) -> Result<&'static D, String> {
        match self.driver.get() {
            Some(driver) => Ok(driver),
            None => self.take(library, RTLD_NOW | RTLD_LOCAL),
        }
    }

    fn take(&self, library: &Path, flags: c_int) -> Result<&'static D, String> {
        // SAFETY: the library is the GPU driver, which programs load at any time and from any thread.
        let library = unsafe { Library::open(Some(library), flags) }.map_err(|error| root_cause(&error))?;
        self.vendor.loads.found();
        let driver = (self.vendor.bind)(library)?;
        let driver = self.driver.get_or_init(|| driver);
        self.vendor.hardware.expect();
        let library = driver.library();
        log::info!("{} driver {} at {}", self.vendor.name, library.version, library.path.display());
        Ok(driver)
    }
}
