//! CUDA, through the driver API alone: nothing of the toolkit is needed to build or to run.

mod contexts;
mod copies;
mod devices;
mod direct;
mod gdrcopy;
mod hardware;
mod kernels;
mod library;
mod mapping;
mod memory;
mod pool;
mod sharing;
mod status;
mod streams;
mod table;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use self::library::{Found, LIBRARY};
use crate::driver::{Discovery, Driver};
use crate::error::DeviceError;
use crate::loader::LoadWatch;

/// Libraries that were loaded since the driver was looked for.
static LOADS: LoadWatch = LoadWatch::new();

/// Looks for the CUDA driver of this process.
pub(crate) struct Cuda {
    found: Found,
}

impl Cuda {
    /// Looks for the driver; see [`library`] for where. One that comes later is found if it is `expected`, or the machine
    /// may have a device.
    pub(crate) fn find(folder: Option<&Path>, expected: bool) -> Self {
        let found = Found::default();
        if let Some(folder) = folder
            && let Err(reason) = found.load(&folder.join(LIBRARY))
        {
            cableway_base::warn_once(&format!("cuda/libdir/{}", folder.display()), || {
                format!("there is no usable CUDA driver in {}: {reason}", folder.display())
            });
        }
        if found.driver().is_none() {
            log::info!("no CUDA driver is loaded: all memory is host memory until the program loads one");
            LOADS.watch(|| found.is_absent());
        }
        if expected || hardware::may_be_here() {
            hardware::expect();
        }
        Cuda { found }
    }
}

impl Discovery for Cuda {
    fn expected(&self) -> &'static AtomicBool {
        &hardware::EXPECTED
    }

    fn driver(&self) -> Option<&'static dyn Driver> {
        self.found.driver().map(|driver| driver as &dyn Driver)
    }

    fn is_absent(&self) -> bool {
        LOADS.no_driver()
    }

    fn initialise(&self) -> Result<(), DeviceError> {
        let driver = self.found.load(Path::new(LIBRARY)).map_err(|reason| DeviceError {
            call: "dlopen",
            object: LIBRARY.to_owned(),
            reason,
        })?;
        // SAFETY: may be called any number of times, from any thread.
        let initialised = unsafe { driver.cuInit(0) };
        let dynamic: &dyn Driver = driver;
        initialised.map_err(|failure| dynamic.error(failure, driver.library.path.display().to_string()))
    }
}
