//! CUDA through the driver API only. Neither building nor running needs the toolkit.

mod contexts;
mod copies;
mod devices;
mod direct;
mod gdrcopy;
mod kernels;
mod library;
mod mapping;
mod memory;
mod pool;
mod sharing;
mod status;
mod streams;
mod table;
mod words;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use self::library::{CudaDriver, LIBRARY};
use crate::driver::{Discovery, Driver, Hardware, Numbering, Search, Searched};
use crate::error::DeviceError;
use crate::loader::LoadWatch;

/// Libraries that the process loaded after the last search for the driver.
static LOADS: LoadWatch = LoadWatch::new();

/// NVIDIA devices. Under WSL, Windows owns the device.
static HARDWARE: Hardware =
    Hardware::new(&["dev/nvidiactl", "dev/nvidia-uvm", "dev/dxg", "proc/driver/nvidia"], "10de");

/// The numbers of the devices in this process.
static NUMBERS: Numbering = Numbering::new();

/// Looks for the CUDA driver of this process.
pub(crate) struct Cuda(Search<CudaDriver>);

impl Cuda {
    /// Looks for the driver; see [`library`] for where.
    pub(crate) fn find(folder: Option<&Path>, expected: bool) -> Self {
        let search = Self::search();
        search.begin(folder, expected);
        Cuda(search)
    }

    fn search() -> Search<CudaDriver> {
        let (name, libraries, bind) = ("CUDA", &[LIBRARY], CudaDriver::bind);
        Search::new(Searched { name, libraries, hardware: &HARDWARE, loads: &LOADS, bind })
    }
}

impl Discovery for Cuda {
    fn name(&self) -> &'static str {
        "CUDA"
    }

    fn expected(&self) -> &'static AtomicBool {
        &HARDWARE.expected
    }

    fn driver(&self) -> Option<&'static dyn Driver> {
        self.0.driver().map(|driver| driver as &dyn Driver)
    }

    fn numbers(&self) -> &'static Numbering {
        &NUMBERS
    }

    fn may_be_here(&self) -> bool {
        HARDWARE.is_expected() || HARDWARE.may_be_here()
    }

    fn is_absent(&self) -> bool {
        LOADS.no_driver()
    }

    fn initialise(&self) -> Result<(), DeviceError> {
        let driver = self.0.load_by_name()?;
        // SAFETY: may be called any number of times, from any thread.
        let initialised = unsafe { driver.cuInit(0) };
        let dynamic: &dyn Driver = driver;
        // Programs name devices by numbers from now on. A failure to count appears when one is used.
        let _ = initialised.is_ok().then(|| NUMBERS.first(|| dynamic.device_count()));
        initialised.map_err(|failure| dynamic.error(failure, driver.library.path.display().to_string()))
    }
}
