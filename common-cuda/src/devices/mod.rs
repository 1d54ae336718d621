//! The handle through which every other crate reaches device memory.

mod buffer;
mod copy;
mod direct;
mod facts;
mod find;
mod kernels;
mod moves;
mod one_shot;
mod order;
mod pools;
mod program_stream;
mod reduce;
mod scratch;
mod scratch_pool;
mod stream_queries;
mod stream_words;

pub use buffer::DeviceBuffer;
pub use moves::Move;
pub use one_shot::{DeviceSlots, HostSlots};
pub use order::CopyOrder;
pub use program_stream::{CopySlot, ProgramStream, StreamStep};
pub use scratch::Scratch;
pub use scratch_pool::{PooledScratch, ScratchPool};
pub use stream_queries::StreamQueries;
pub use stream_words::{StreamWords, WordsFile};

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::Parameters;

use crate::costs::Costs;
use crate::driver::{AMD_ALLOCATION, Driver};
use crate::error::DeviceError;
use crate::host_ranges;
use crate::location::{DeviceAllocation, DeviceIndex, Location, MemoryClass};
use crate::mapping_counts::MappingCounts;
use crate::mapping_gate::{Gate, Holder, MappingsAllowed, MappingsHeld};
use crate::memory::HostPool;
use crate::platform::Platform;

/// The environment variable that names the folder of NVIDIA's driver library, as Open MPI's `--with-cuda-libdir` does.
pub const LIBDIR_VARIABLE: &str = "CABLEWAY_CUDA_LIBDIR";

/// The environment variable that names the folder of AMD's HIP library.
pub const HIP_LIBDIR_VARIABLE: &str = "CABLEWAY_HIP_LIBDIR";

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
    /// One for each vendor in the build. Without any, every pointer is host memory.
    platforms: [Option<Platform>; 2],
    costs: Arc<Costs>,
    mappings: Arc<MappingCounts>,
    mapping_gate: Arc<Gate>,
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

    /// Finds the drivers: in the folders that `CABLEWAY_CUDA_LIBDIR` and `CABLEWAY_HIP_LIBDIR` name, else those that the
    /// program has loaded or will load. Never fails and creates nothing. Without a driver it logs one line at level
    /// info, and every pointer is host memory until the program loads a driver. On a machine without a device no driver
    /// is expected, unless a variable is set or [`initialise`](Self::initialise) finds one.
    pub fn open(parameters: &Parameters) -> Self {
        find::in_environment(parameters)
    }

    /// As [`open`](Self::open), with the folder named by the caller instead of the environment, and without a check of
    /// the machine's hardware. A vendor whose library is not in the folder is left out.
    pub fn open_in(folder: Option<&Path>, parameters: &Parameters) -> Self {
        find::in_folder(folder, parameters)
    }

    /// As [`open_in`](Self::open_in), for several folders: one for each vendor.
    pub fn open_in_all(folders: &[&Path], parameters: &Parameters) -> Self {
        find::in_folders(folders, parameters)
    }

    /// Creates the devices of the test vendor. Their memory is host memory that faults when the CPU accesses it.
    #[cfg(any(feature = "double", test))]
    pub fn double() -> Self {
        let mut parameters = Parameters::default();
        // Do not measure a simulated device.
        let assigned = parameters.assign("costs=default", cableway_base::Source::Program);
        debug_assert!(assigned.is_ok());
        find::found(vec![Box::new(crate::double::Found)], &parameters)
    }

    /// Checks whether device memory may appear: the machine may have a device, or a driver was named or found.
    pub fn expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Checks whether a driver is in the process at present. True does not mean that it is initialised or has devices.
    pub fn present(&self) -> bool {
        self.platforms().any(|platform| platform.driver().is_some())
    }

    /// Loads the drivers by the loader's own search, if they are not loaded yet, and initialises them. Only programs
    /// that use Cableway's [`DeviceBuffer`]s or ask for [`facts`](Self::facts) need it. Messages do not: a program with
    /// device memory has initialised its driver.
    ///
    /// # Errors
    /// There is no driver, or none has a device.
    pub fn initialise(&self) -> Result<(), DeviceError> {
        let mut failed = None;
        let mut any = false;
        let first = |at: usize| at == 0;
        for (at, platform) in self.platforms().enumerate() {
            let may_be_here = platform.discovery.may_be_here();
            if !may_be_here && !first(at) {
                continue;
            }
            match platform.discovery.initialise() {
                Ok(()) => any = true,
                // The reason that counts is that of a vendor whose device may be here.
                Err(error) if may_be_here || failed.is_none() => failed = Some(error),
                Err(_) => {}
            }
        }
        match failed {
            _ if any => Ok(()),
            Some(error) => Err(error),
            None => Err(DeviceError::no_driver("initialise", "the driver")),
        }
    }

    /// Returns the location of `len` bytes at `address`. A zero-length buffer is host memory and never queried.
    ///
    /// The location is that of the first byte. [`one_allocation`](Self::one_allocation) tells whether it holds for all.
    #[inline]
    pub fn classify(&self, address: *const u8, len: usize) -> Location {
        if self.expected() { self.look_up(address, len) } else { Location::HOST }
    }

    /// Checks whether [`classify`](Self::classify) asks a driver about this memory.
    #[inline]
    pub fn asks_about(&self, address: *const u8, len: usize) -> bool {
        self.expected() && len != 0 && !host_ranges::certain(address as usize, len)
    }

    /// Does what [`classify`](Self::classify) does, for memory of the host. Asks the driver only if it matters whether the memory is
    /// page-locked.
    #[inline]
    pub fn classify_in_host(&self, address: *const u8, len: usize) -> Location {
        if host_ranges::is_small(len) { Location::HOST } else { self.classify(address, len) }
    }

    /// Checks whether only the driver may copy from and to the memory. Unlike [`classify`](Self::classify), this never asks
    /// the driver about memory in the thread's stack, in the heap or in static data, however long it is.
    #[inline]
    pub fn on_device(&self, address: *const u8, len: usize) -> bool {
        self.expected() && !host_ranges::contain(address as usize, len) && self.look_up(address, len).on_device()
    }

    /// Returns the allocation that holds memory, if its location does not change. Asks the driver. `None` for memory of the
    /// host, of pools and of `cuMemCreate`, for managed memory, and while a capture hides something.
    pub fn allocation_of(&self, address: *const u8, len: usize) -> Option<DeviceAllocation> {
        self.allocation_at(&self.classify(address, len))
    }

    /// Returns the same for memory that was classified as `at`. Never asks the driver.
    pub fn allocation_at(&self, at: &Location) -> Option<DeviceAllocation> {
        let allocation = DeviceAllocation(NonZeroU64::new(at.buffer_id)?);
        self.located(allocation).map(|_| allocation)
    }

    /// Returns the location of an allocation that exists. Never asks the driver. `None` if that was forgotten, because
    /// many other allocations were used since.
    #[inline]
    pub fn located(&self, DeviceAllocation(id): DeviceAllocation) -> Option<Location> {
        self.platform_of_id(id.get())?.contexts()?.locate_settled(id.get())
    }

    fn look_up(&self, address: *const u8, len: usize) -> Location {
        let [first, second] = &self.state.platforms;
        let there = |platform: &Option<Platform>| platform.as_ref().is_some_and(Platform::may_be_there);
        let (ask_first, ask_second) = (there(first), there(second));
        if len == 0 || !(ask_first || ask_second) || host_ranges::certain(address as usize, len) {
            return Location::HOST;
        }
        // An address that one driver knows is not asked of the other.
        let ask = |platform: &Option<Platform>| platform.as_ref().map_or(Location::HOST, |it| it.classify(address));
        let found = if ask_first { ask(first) } else { Location::HOST };
        if ask_second && found.class == MemoryClass::Host { ask(second) } else { found }
    }

    /// Checks whether a driver knows the first and the last byte of memory, so that a device reaches it: its own memory, and
    /// host memory that is registered or allocated by the driver, wherever it lies.
    pub fn reaches(&self, address: *const u8, len: usize) -> bool {
        let known = |address| {
            let mut asked = self.platforms().filter(|platform| platform.may_be_there());
            asked.any(|platform| platform.classify(address).class != MemoryClass::Host)
        };
        len == 0 || (known(address) && (len == 1 || known(address.wrapping_add(len - 1))))
    }

    /// Returns the device and context that page-locked host memory belongs to, as the location of memory there: a
    /// [`batch`](Self::batch) at it copies from and to the memory without the CPU. Returns `None` for other memory, and if
    /// the first and the last byte were page-locked apart.
    pub fn page_locked_in(&self, address: *const u8, len: usize) -> Option<Location> {
        let mut asked = self.platforms().filter(|platform| platform.may_be_there());
        asked.find_map(|platform| platform.page_locked_in(address, len))
    }

    /// Checks whether all of `len` bytes at `address`, classified as `at`, lie in one allocation. A datatype's true
    /// extent from `MPI_BOTTOM` may span several, and a copy must not cross their borders. Host memory counts as one
    /// allocation, unless the last byte is on a device.
    pub fn one_allocation(&self, at: &Location, address: *const u8, len: usize) -> bool {
        let Some(platform) = self.platform_at(at).filter(|_| len > 1) else { return true };
        if !at.on_device() {
            return !self.classify(address.wrapping_add(len - 1), 1).on_device();
        }
        // Allocations of a device begin at multiples of this, as the drivers' guides say. So no other one is that near.
        const APART: usize = 256;
        let (first, last) = (address as usize, (address as usize).wrapping_add(len - 1));
        if at.class == MemoryClass::Device && first / APART == last / APART {
            return true;
        }
        if let Some(inside) = platform.contexts().and_then(|it| it.contains(at.buffer_id, address as usize, len)) {
            return inside;
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

    /// Has no memory of peers mapped anew or unmapped, no kernels loaded and no costs measured while the value lives, after
    /// what is being done of that now. Mappings that are open and kernels that are loaded are used as before. Blocks for some
    /// milliseconds at most, unless costs are being measured or the driver waits for the program's kernels.
    pub fn hold_mappings(&self, holder: Holder) -> MappingsHeld {
        self.state.mapping_gate.hold(holder)
    }

    /// Does the same, and [`allow_mappings`](Self::allow_mappings) has no effect meanwhile: for callers whose kernels run in
    /// streams that nobody has described.
    pub fn hold_mappings_firmly(&self) -> MappingsHeld {
        self.state.mapping_gate.hold_firmly()
    }

    /// Returns whether mappings are held off: a stream of the program may wait for a message.
    pub fn are_mappings_held(&self) -> bool {
        self.state.mapping_gate.is_held()
    }

    /// Has memory of peers mapped and unmapped and kernels loaded while the value lives, although `holder` holds that off: a
    /// caller that has seen that none of its streams waits may map and load what it needs. Holds of others have effect. The
    /// end of the value blocks until that is done.
    pub fn allow_mappings(&self, holder: Holder) -> MappingsAllowed {
        self.state.mapping_gate.allow(holder)
    }

    /// Returns whether mappings that nobody uses are still open, because that was held off.
    /// [`allow_mappings`](Self::allow_mappings) closes them, and the end of the last hold.
    pub fn has_unclosed_mappings(&self) -> bool {
        self.state.mapping_gate.has_unclosed()
    }

    /// Has a function called whenever a mapping is to be closed later, until it returns false. It must not use `Devices`.
    pub fn on_unclosed_mapping(&self, waker: impl Fn() -> bool + Send + 'static) {
        self.state.mapping_gate.add_waker(waker);
    }

    pub(crate) fn mapping_gate(&self) -> &Arc<Gate> {
        &self.state.mapping_gate
    }

    /// Returns the vendors' platforms.
    pub(crate) fn platforms(&self) -> impl Iterator<Item = &Platform> {
        self.state.platforms.iter().flatten()
    }

    /// Returns the platform of memory that was found at `at`. This method and the next ones alone choose a vendor.
    #[inline]
    pub(crate) fn platform_at(&self, at: &Location) -> Option<&Platform> {
        let [first, second] = &self.state.platforms;
        match (second, at.device) {
            (Some(second), Some(device)) if second.holds(device) => Some(second),
            _ => first.as_ref().or(second.as_ref()),
        }
    }

    /// Returns the platform of a device.
    fn platform_of(&self, device: DeviceIndex) -> Option<&Platform> {
        let present = || self.platforms().find(|platform| platform.driver().is_some());
        self.platforms().find(|platform| platform.counts(device)).or_else(present).or_else(|| self.platforms().next())
    }

    /// Returns the platform of an allocation's id.
    fn platform_of_id(&self, id: u64) -> Option<&Platform> {
        let [first, second] = &self.state.platforms;
        if id & AMD_ALLOCATION != 0 { second.as_ref().or(first.as_ref()) } else { first.as_ref() }
    }

    /// Checks whether one driver can copy between two places, of which either may be host memory.
    pub fn one_vendor(&self, a: &Location, b: &Location) -> bool {
        let of =
            |at: &Location| at.device.map(|device| self.state.platforms[1].as_ref().is_some_and(|it| it.holds(device)));
        !a.on_device() || !b.on_device() || of(a) == of(b)
    }

    /// Fails if the two places are on devices of different vendors.
    ///
    /// # Errors
    /// They are.
    pub fn check_one_vendor(&self, a: &Location, b: &Location) -> Result<(), DeviceError> {
        if self.one_vendor(a, b) {
            return Ok(());
        }
        let object = "memory of devices of two vendors".to_owned();
        Err(DeviceError { call: "copy", object, reason: "no driver copies between them".to_owned() })
    }

    /// Returns the platform of memory at `at`, for calls that need one.
    fn need_at<S: Into<String>>(
        &self,
        at: &Location,
        call: &'static str,
        object: impl FnOnce() -> S,
    ) -> Result<&Platform, DeviceError> {
        self.platform_at(at).ok_or_else(|| DeviceError::no_driver(call, object()))
    }

    /// Returns the driver of a device, for calls that need one.
    fn driver_of<S: Into<String>>(
        &self,
        device: DeviceIndex,
        call: &'static str,
        object: impl FnOnce() -> S,
    ) -> Result<&'static dyn Driver, DeviceError> {
        self.platform_of(device).and_then(Platform::driver).ok_or_else(|| DeviceError::no_driver(call, object()))
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Devices").field("driver", &self.present()).finish()
    }
}

#[cfg(all(test, not(any(feature = "cuda", feature = "rocm"))))]
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
