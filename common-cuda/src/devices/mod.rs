//! The handle through which every other crate reaches device memory.

mod buffer;
mod copy;
mod direct;
mod facts;
mod kernels;
mod order;
mod pools;
mod reduce;
mod scratch;
mod stream_queries;

pub use buffer::DeviceBuffer;
pub use order::CopyOrder;
pub use scratch::Scratch;
pub use stream_queries::StreamQueries;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::Parameters;

use crate::driver::Driver;
use crate::error::DeviceError;
use crate::host_ranges;
use crate::location::Location;
use crate::mapping_counts::MappingCounts;
use crate::memory::HostPool;
use crate::platform::Platform;

/// The environment variable that names the folder of the driver library, as Open MPI's `--with-cuda-libdir` does.
pub const LIBDIR_VARIABLE: &str = "CABLEWAY_CUDA_LIBDIR";

/// The devices of this process. Clones share one state; every method may be called from any thread.
#[derive(Clone)]
pub struct Devices {
    /// One allocation, because messages hold clones.
    state: Arc<State>,
    /// True if a driver may be found later. For host buffers nothing else is checked.
    expected: &'static AtomicBool,
}

#[derive(Default)]
struct State {
    /// Without a platform, every pointer is host memory.
    platform: Option<Platform>,
    mappings: Arc<MappingCounts>,
    /// Memory for lists of blocks.
    lists: OnceLock<HostPool>,
}

impl Default for Devices {
    fn default() -> Self {
        Self::none()
    }
}

impl Devices {
    /// Without devices: every pointer is host memory.
    pub fn none() -> Self {
        static NO: AtomicBool = AtomicBool::new(false);
        Devices { state: Arc::default(), expected: &NO }
    }

    /// Creates the devices of a platform.
    #[cfg(any(feature = "cuda", feature = "double", test))]
    pub(crate) fn of(platform: Platform) -> Self {
        let expected = platform.discovery.expected();
        Devices { state: Arc::new(State { platform: Some(platform), ..State::default() }), expected }
    }

    /// Finds the driver: in the folder that `CABLEWAY_CUDA_LIBDIR` names, else the one that the program has loaded or
    /// will load. Never fails and creates nothing. Without a driver it logs one line at level info, and every pointer
    /// is host memory until the program loads a driver. On a machine without a device no driver is expected, unless the
    /// variable is set or [`initialise`](Self::initialise) finds one.
    pub fn open(parameters: &Parameters) -> Self {
        let folder = std::env::var_os(LIBDIR_VARIABLE).filter(|folder| !folder.is_empty());
        Self::opened(folder.as_deref().map(Path::new), parameters, folder.is_some())
    }

    /// As [`open`](Self::open), with the folder named by the caller instead of the environment, and without a check of
    /// the machine's hardware.
    pub fn open_in(folder: Option<&Path>, parameters: &Parameters) -> Self {
        Self::opened(folder, parameters, true)
    }

    #[cfg(feature = "cuda")]
    fn opened(folder: Option<&Path>, parameters: &Parameters, expected: bool) -> Self {
        Self::of(Platform::new(Box::new(crate::cuda::Cuda::find(folder, expected)), parameters))
    }

    #[cfg(not(feature = "cuda"))]
    fn opened(_folder: Option<&Path>, _parameters: &Parameters, _expected: bool) -> Self {
        Self::none()
    }

    /// Creates the devices of the test vendor. Their memory is host memory that faults when the CPU accesses it.
    #[cfg(any(feature = "double", test))]
    pub fn double() -> Self {
        let mut parameters = Parameters::default();
        // Do not measure a simulated device.
        let assigned = parameters.assign("device_costs=default", cableway_base::Source::Program);
        debug_assert!(assigned.is_ok());
        Self::of(Platform::new(Box::new(crate::double::Found), &parameters))
    }

    /// Checks whether device memory may appear: the machine may have a device, or a driver was named or found.
    pub fn expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Checks whether a driver is in the process at present. True does not mean that it is initialised or has devices.
    pub fn present(&self) -> bool {
        self.platform().and_then(Platform::driver).is_some()
    }

    /// Loads the driver by the loader's own search, if it is not loaded yet, and initialises it. Only programs that use
    /// Cableway's [`DeviceBuffer`]s or ask for [`facts`](Self::facts) need it. Messages do not: a program with device
    /// memory has initialised the driver.
    ///
    /// # Errors
    /// There is no driver, or it has no device.
    pub fn initialise(&self) -> Result<(), DeviceError> {
        self.need("initialise", || "the driver")?.discovery.initialise()
    }

    /// Returns the location of `len` bytes at `address`. A zero-length buffer is host memory and never queried.
    ///
    /// The location is that of the first byte. [`one_allocation`](Self::one_allocation) tells whether it holds for all.
    #[inline]
    pub fn classify(&self, address: *const u8, len: usize) -> Location {
        if self.expected() { self.look_up(address, len) } else { Location::HOST }
    }

    fn look_up(&self, address: *const u8, len: usize) -> Location {
        match self.platform() {
            Some(platform)
                if len != 0 && !platform.discovery.is_absent() && !host_ranges::certain(address as usize, len) =>
            {
                platform.classify(address)
            }
            _ => Location::HOST,
        }
    }

    /// Checks whether all of `len` bytes at `address`, classified as `at`, lie in one allocation. A datatype's true
    /// extent from `MPI_BOTTOM` may span several, and a copy must not cross their borders. Host memory counts as one
    /// allocation, unless the last byte is on a device.
    pub fn one_allocation(&self, at: &Location, address: *const u8, len: usize) -> bool {
        let Some(platform) = self.platform().filter(|_| len > 1) else { return true };
        if !at.on_device() {
            return !self.classify(address.wrapping_add(len - 1), 1).on_device();
        }
        // This query needs no current context, and takes a tenth of the other one's time.
        let last = self.classify(address.wrapping_add(len - 1), 1).buffer_id;
        if last == at.buffer_id && last != 0 {
            return true;
        }
        platform.allocation(address).map_or(last == at.buffer_id, |(base, bytes)| {
            bytes.checked_sub(len).is_some_and(|room| address as usize - base as usize <= room)
        })
    }

    /// Returns the counts of mappings of peers' memory.
    pub fn mappings(&self) -> &MappingCounts {
        &self.state.mappings
    }

    /// Returns the platform of the devices. Only this method chooses a vendor. For a second one it needs a list, and a
    /// location or a device to choose by.
    #[inline]
    pub(crate) fn platform(&self) -> Option<&Platform> {
        self.state.platform.as_ref()
    }

    /// Returns the platform, for calls that need one.
    fn need<S: Into<String>>(&self, call: &'static str, object: impl FnOnce() -> S) -> Result<&Platform, DeviceError> {
        self.platform().ok_or_else(|| DeviceError::no_driver(call, object()))
    }

    /// Returns the driver, for calls that need one.
    fn driver<S: Into<String>>(
        &self,
        call: &'static str,
        object: impl FnOnce() -> S,
    ) -> Result<&'static dyn Driver, DeviceError> {
        self.platform().and_then(Platform::driver).ok_or_else(|| DeviceError::no_driver(call, object()))
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("driver", &self.present()).finish()
    }
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use super::*;

    #[test]
    fn built_without_devices_all_memory_is_host_memory() {
        let devices = Devices::open(&Parameters::default());
        assert!(!devices.present());
        let bytes = vec![0_u8; 1 << 20];
        assert_eq!(devices.classify(bytes.as_ptr(), bytes.len()), Location::HOST);
        assert!(devices.initialise().is_err());
    }
}
