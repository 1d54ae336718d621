//! HIP, AMD's interface to its devices, through its runtime library only. Neither building nor running needs ROCm.
//!
//! # Sources
//! No machine of this project has such a device. Names, signatures, structures and numbers are those of
//! `include/hip/hip_runtime_api.h` in the repository ROCm/HIP at the tags rocm-5.0.0, 5.2.0, 5.3.0, 5.5.0, 5.7.1, 6.0.0
//! and 6.2.2, and of `projects/hip/include/hip/hip_runtime_api.h` in ROCm/rocm-systems for release 7. What a function
//! does beyond its description was read in ROCm/clr (`hipamd/src`) at the tags rocm-5.7.1, 6.0.0 and 6.2.2. Each number
//! below names the declaration that it comes from. docs/amd.md says what was never run.
//!
//! # Differences from CUDA
//! - There are no contexts. A device is one, and each thread has a current device, 0 at first.
//! - There is no state before initialisation: every call initialises the runtime. So an address is asked about only in
//!   a process that has loaded the library.
//! - A failed call leaves its code in the thread's last error, which a program may read later. So it is cleared.

mod contexts;
mod copies;
mod devices;
mod direct;
mod kernels;
mod library;
mod mapping;
mod memory;
mod release;
mod sharing;
mod status;
mod streams;
mod table;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use self::library::{HipDriver, LIBRARIES};
use crate::driver::{Discovery, Driver, Hardware, Numbering, Search, Searched};
use crate::error::DeviceError;
use crate::loader::LoadWatch;

/// Libraries that the process loaded after the last search for the driver.
static LOADS: LoadWatch = LoadWatch::new();

/// AMD devices. The kernel module creates the file. The number is that of AMD's display controllers.
static HARDWARE: Hardware = Hardware::new(&["dev/kfd"], "1002");

/// The numbers of the devices in this process.
static NUMBERS: Numbering = Numbering::new();

/// Looks for the HIP library of this process.
pub(crate) struct Hip(Search<HipDriver>);

impl Hip {
    /// Looks for the library; see [`library`] for where.
    pub(crate) fn find(folder: Option<&Path>, expected: bool) -> Self {
        let search = Self::search();
        search.begin(folder, expected);
        Hip(search)
    }

    fn search() -> Search<HipDriver> {
        let (name, libraries, bind) = ("HIP", LIBRARIES, HipDriver::bind);
        Search::new(Searched { name, libraries, hardware: &HARDWARE, loads: &LOADS, bind })
    }
}

impl Discovery for Hip {
    fn name(&self) -> &'static str {
        "HIP"
    }

    fn expected(&self) -> &'static AtomicBool {
        &HARDWARE.expected
    }

    fn numbers(&self) -> &'static Numbering {
        &NUMBERS
    }

    fn may_be_here(&self) -> bool {
        HARDWARE.is_expected() || HARDWARE.may_be_here()
    }

    fn driver(&self) -> Option<&'static dyn Driver> {
        self.0.driver().map(|driver| driver as &dyn Driver)
    }

    fn is_absent(&self) -> bool {
        LOADS.no_driver()
    }

    fn initialise(&self) -> Result<(), DeviceError> {
        let driver = self.0.load_by_name()?;
        // SAFETY: may be called any number of times, from any thread.
        let initialised = unsafe { driver.hipInit(0) }.and_then(|()| NUMBERS.first(|| driver.count()));
        let dynamic: &dyn Driver = driver;
        initialised.map(drop).map_err(|failure| {
            let mut error = dynamic.error(failure, driver.library.path.display().to_string());
            if status::NO_DEVICE.contains(&failure.code) {
                error.reason = format!("there is no AMD device: {}", error.reason);
            }
            error
        })
    }
}
