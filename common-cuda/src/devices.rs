//! The handle through which every other crate reaches device memory.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::Parameters;

use crate::copy::{Completion, CopyBatch, Direction, EngineWork, Order};
use crate::costs::{CostReport, Costs};
use crate::error::DeviceError;
use crate::facts::Facts;
use crate::host::HostRegistration;
use crate::host_pool::HostPool;
use crate::host_ranges::{self, Asking};
use crate::ipc::MappingCounts;
use crate::location::{DeviceIndex, Location, MemoryClass};
use crate::spread::Spread;
use crate::vendor::Vendor;

/// The environment variable that names the folder of the driver library, as Open MPI's `--with-cuda-libdir` does.
pub const LIBDIR_VARIABLE: &str = "CABLEWAY_CUDA_LIBDIR";

/// When something began, as [`Devices::settled_since`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// The devices of this process. Clones share one state; every method may be called from any thread.
#[derive(Clone)]
pub struct Devices {
    /// One, because messages hold clones.
    state: Arc<State>,
    /// The vendor's word on whether its driver can turn up, a branch away for every host buffer.
    expected: &'static AtomicBool,
}

#[derive(Default)]
struct State {
    vendor: Option<Arc<dyn Vendor>>,
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
    /// No devices: every pointer is host memory.
    pub fn none() -> Self {
        static NO: AtomicBool = AtomicBool::new(false);
        Devices { state: Arc::default(), expected: &NO }
    }

    /// Devices of a vendor.
    #[cfg(any(feature = "cuda", feature = "double"))]
    pub(crate) fn of(vendor: Arc<dyn Vendor>) -> Self {
        let expected = vendor.expected();
        Devices { state: Arc::new(State { vendor: Some(vendor), ..State::default() }), expected }
    }

    /// Finds the driver: in the folder that `CABLEWAY_CUDA_LIBDIR` names, else the one that the program has loaded or
    /// will load. Never fails and creates nothing: without a driver it says one line at level info, and every pointer
    /// is host memory until the program loads one. On a machine that has no device it is so for ever, unless the
    /// variable is set or [`initialise`](Self::initialise) finds a driver.
    pub fn open(parameters: &Parameters) -> Self {
        let folder = std::env::var_os(LIBDIR_VARIABLE).filter(|folder| !folder.is_empty());
        Self::opened(folder.as_deref().map(Path::new), parameters, folder.is_some())
    }

    /// [`open`](Self::open) with the folder named by the caller instead of the environment, whatever the machine has.
    pub fn open_in(folder: Option<&Path>, parameters: &Parameters) -> Self {
        Self::opened(folder, parameters, true)
    }

    #[cfg(feature = "cuda")]
    fn opened(folder: Option<&Path>, parameters: &Parameters, expected: bool) -> Self {
        Self::of(Arc::new(crate::cuda::Cuda::open(folder, parameters, expected)))
    }

    #[cfg(not(feature = "cuda"))]
    fn opened(_folder: Option<&Path>, _parameters: &Parameters, _expected: bool) -> Self {
        Self::none()
    }

    /// Whether device memory can turn up in this process: its machine may have a device, or a driver was named or found.
    pub fn expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Whether a driver is in the process at present. True does not mean that it is initialised or has devices.
    pub fn present(&self) -> bool {
        self.state.vendor.as_ref().is_some_and(|vendor| vendor.present())
    }

    /// Loads the driver by the loader's own search if it is not loaded yet, and initialises it. For programs that use
    /// our [`DeviceBuffer`](crate::DeviceBuffer)s or ask for [`facts`](Self::facts); sending and receiving never needs
    /// it, because whoever has device memory has initialised the driver.
    ///
    /// # Errors
    /// There is no driver, or it has no device.
    pub fn initialise(&self) -> Result<(), DeviceError> {
        match &self.state.vendor {
            Some(vendor) => vendor.initialise(),
            None => Err(DeviceError::no_driver("initialise", "the driver")),
        }
    }

    /// What the driver says about itself and its devices. [`initialise`](Self::initialise) first.
    ///
    /// # Errors
    /// There is no driver, it is not initialised, or it fails to answer.
    pub fn facts(&self) -> Result<Facts, DeviceError> {
        match &self.state.vendor {
            Some(vendor) => vendor.facts(),
            None => Err(DeviceError::no_driver("facts", "the driver")),
        }
    }

    /// The identity of a device that holds across processes and containers; a MIG instance has its own.
    ///
    /// # Errors
    /// There is no such device, or the driver is older than 11.4.
    pub fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], DeviceError> {
        match &self.state.vendor {
            Some(vendor) => vendor.uuid(device),
            None => Err(DeviceError::no_driver("uuid", format!("device {}", device.0))),
        }
    }

    /// What copies by devices cost, as far as that is known: a file is read, or a measurement begun, when a context of a
    /// device is first seen.
    pub fn costs(&self) -> Arc<Costs> {
        self.state.vendor.as_ref().and_then(|vendor| vendor.costs().cloned()).unwrap_or_default()
    }

    /// What is known of each device, and where from. On those that are to be measured contexts are made where there are
    /// none, and what is not known of them is measured and kept before this returns. [`initialise`](Self::initialise)
    /// first.
    ///
    /// # Errors
    /// There is no driver, or a device has no room for a context.
    pub fn report_costs(&self, measure: &[DeviceIndex]) -> Result<Vec<CostReport>, DeviceError> {
        match &self.state.vendor {
            Some(vendor) => vendor.report_costs(measure),
            None => Err(DeviceError::no_driver("report_costs", "the driver")),
        }
    }

    /// Ends what is being measured, for a program that is about to end; nothing is measured after that.
    pub fn stop_measuring(&self) {
        if let Some(vendor) = &self.state.vendor {
            vendor.stop_measuring();
        }
    }

    /// Tells where `len` bytes at `address` live. A zero-length buffer is host memory and never queried.
    ///
    /// Answers for the first byte: whether the rest lies with it, [`one_allocation`](Self::one_allocation) tells.
    #[inline]
    pub fn classify(&self, address: *const u8, len: usize) -> Location {
        if self.expected() { self.look_up(address, len) } else { Location::HOST }
    }

    fn look_up(&self, address: *const u8, len: usize) -> Location {
        match &self.state.vendor {
            Some(vendor) if len != 0 && !vendor.is_absent() && !host_ranges::certain(address as usize, len) => {
                let asking = Asking::begin();
                let location = vendor.classify(address, len);
                if location.class == MemoryClass::Host {
                    asking.found_host(address as usize, len);
                }
                location
            }
            _ => Location::HOST,
        }
    }

    /// Whether all of `len` bytes at `address`, classified as `at`, lie in one allocation: a datatype's true extent
    /// from `MPI_BOTTOM` may span several, of which a copy must not cross the borders. Host memory counts as one, up
    /// to a last byte on a device.
    pub fn one_allocation(&self, at: &Location, address: *const u8, len: usize) -> bool {
        let Some(vendor) = self.state.vendor.as_ref().filter(|_| len > 1) else { return true };
        if !at.on_device() {
            return !self.classify(address.wrapping_add(len - 1), 1).on_device();
        }
        // No context needs to be current for this question, and it takes a tenth of the other's time.
        let last = self.classify(address.wrapping_add(len - 1), 1).buffer_id;
        if last == at.buffer_id && last != 0 {
            return true;
        }
        vendor.allocation(address).map_or(last == at.buffer_id, |(base, bytes)| {
            bytes.checked_sub(len).is_some_and(|room| address as usize - base as usize <= room)
        })
    }

    /// From now on remembers which ranges are host memory, in this process and for every `Devices` in it, so that a
    /// repeated question costs a few nanoseconds.
    ///
    /// # Safety
    /// From now on [`forget_host_range`](Self::forget_host_range) is called for every range before it is unmapped: a
    /// stale answer would have the CPU touch device memory.
    pub unsafe fn remember_host_ranges() {
        host_ranges::begin_remembering();
    }

    /// Pages are about to be unmapped. Allocates nothing and takes no lock, so that it may be called from within an
    /// allocator.
    pub fn forget_host_range(address: *const u8, len: usize) {
        host_ranges::forget(address as usize, len);
    }

    /// Begins copies in the context of `at`, the device side's location.
    ///
    /// # Errors
    /// `at` is host memory, or its context is gone. That the calling thread captures a graph (a message cannot be part
    /// of one) is told by [`CopyBatch::finish`].
    pub fn batch(&self, at: &Location, direction: Direction, order: Order) -> Result<CopyBatch<'_>, DeviceError> {
        let vendor = self.state.vendor.as_ref().ok_or_else(|| DeviceError::no_driver("batch", format!("{at:?}")))?;
        Ok(CopyBatch { inner: vendor.batch(at, direction, order)? })
    }

    /// Whether kernels make copies in the context of the device memory at `at` at present. They are loaded when this is
    /// asked, or anything done, while the default stream is idle.
    pub fn kernels(&self, at: &Location) -> bool {
        self.state.vendor.as_ref().is_some_and(|vendor| vendor.kernels(at))
    }

    /// Whether a kernel had better pack or unpack ([`CopyBatch::copy_packed`]) between device memory at `at` and `len`
    /// bytes of host memory at `host` than copy engines, whose work that would be, and can do so now: it reaches the host
    /// memory, registered by [`register_host`](Self::register_host), and none of ours waits for room.
    pub fn kernel_packs(&self, at: &Location, host: *const u8, len: usize, work: EngineWork) -> bool {
        self.state.vendor.as_ref().is_some_and(|vendor| vendor.kernel_packs(at, (host, len), work))
    }

    /// Whether kernels in the context of `at` may read and write the device memory at `address`, which was found to be
    /// there. Where a copy engine would refuse, a kernel would destroy the program's context.
    pub fn kernel_reaches(&self, at: &Location, address: *const u8) -> bool {
        self.state.vendor.as_ref().is_some_and(|vendor| vendor.kernel_reaches(at, address))
    }

    /// Whether kernels in the context of device memory at `at` can pack such blocks of it into other device memory, and
    /// unpack them from there, at present: they are loaded, none of ours waits for room, and the device reaches the list.
    /// [`CopyBatch::copy_packed`] in a batch between devices has them do so.
    pub fn packs_between(&self, at: &Location, spread: &Spread) -> bool {
        self.state.vendor.as_ref().is_some_and(|vendor| vendor.packs_between(at, spread))
    }

    /// Memory for lists of blocks, which kernels reach.
    pub(crate) fn lists(&self) -> &HostPool {
        // Of a handle without this pool: one that held itself would never end.
        self.state.lists.get_or_init(|| {
            let State { vendor, mappings, .. } = &*self.state;
            let without = State { vendor: vendor.clone(), mappings: mappings.clone(), lists: OnceLock::new() };
            HostPool::new(&Devices { state: Arc::new(without), expected: self.expected }, 0)
        })
    }

    /// What is done once the work is that the default stream of the buffer at `at` holds now, where the parameter
    /// `default_stream_order` asks for that order: before then no other process is to be told that it may read or write
    /// the buffer. Done at once for host memory.
    ///
    /// # Errors
    /// The buffer's context is gone, or the calling thread captures a graph.
    pub fn default_stream(&self, at: &Location) -> Result<Completion, DeviceError> {
        match &self.state.vendor {
            Some(vendor) if at.on_device() => Ok(Completion { inner: vendor.default_stream(at)? }),
            _ => Ok(Completion::DONE),
        }
    }

    /// This moment, to be remembered with an operation that begins.
    pub fn moment(&self) -> Moment {
        Moment(self.state.vendor.as_ref().map_or(0, |vendor| vendor.moment()))
    }

    /// Whether the work that the default stream of the buffer at `at` held at a moment is known to be done, so that
    /// nothing needs to wait for it ([`Order::None`]). Asks nobody.
    pub fn settled_since(&self, at: &Location, moment: Moment) -> bool {
        self.state.vendor.as_ref().is_none_or(|vendor| vendor.settled_since(at, moment.0))
    }

    /// Asks the driver whether that stream has nothing left to do: what [`settled_since`](Self::settled_since) knows is
    /// known from here. Takes more than a microsecond, so it is for a thread that has nothing better to do.
    ///
    /// # Errors
    /// As [`default_stream`](Self::default_stream).
    pub fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError> {
        match &self.state.vendor {
            Some(vendor) if at.on_device() => vendor.ask_default_stream(at),
            _ => Ok(true),
        }
    }

    /// Copies `len` bytes between any two kinds of memory, after the default stream's work, and waits.
    ///
    /// # Safety
    /// Both ranges are allocated and do not overlap, and nobody writes the source or touches the destination meanwhile.
    ///
    /// # Errors
    /// The driver refused.
    pub unsafe fn copy(&self, dst: *mut u8, src: *const u8, len: usize) -> Result<(), DeviceError> {
        let (to, from) = (self.classify(dst, len), self.classify(src, len));
        let (at, direction) = match (from.on_device(), to.on_device()) {
            (false, false) => {
                // SAFETY: both are host memory, and the caller's promise covers the rest.
                unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
                return Ok(());
            }
            (true, false) => (from, Direction::DeviceToHost),
            (false, true) => (to, Direction::HostToDevice),
            (true, true) => (from, Direction::DeviceToDevice),
        };
        // SAFETY: the caller's promise.
        match unsafe { self.copy_and_wait(&at, direction, dst, src, len) } {
            // A driver refuses pool and virtual memory of another device unless its owner granted access.
            // SAFETY: the caller's promise.
            Err(_) if from.on_device() && to.on_device() && from.device != to.device => unsafe {
                self.copy_through_host((dst, &to), (src, &from), len)
            },
            result => result,
        }
    }

    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn copy_and_wait(
        &self,
        at: &Location,
        direction: Direction,
        dst: *mut u8,
        src: *const u8,
        len: usize,
    ) -> Result<(), DeviceError> {
        let mut batch = self.batch(at, direction, Order::AfterDefaultStream)?;
        // SAFETY: the caller's promise; the completion is waited for below.
        unsafe { batch.copy(dst, src, len) }?;
        batch.finish()?.wait()
    }

    /// # Safety
    /// As [`copy`](Self::copy); both are device memory, located as given.
    unsafe fn copy_through_host(
        &self,
        (dst, to): (*mut u8, &Location),
        (src, from): (*const u8, &Location),
        len: usize,
    ) -> Result<(), DeviceError> {
        const PIECE: usize = 4 << 20;
        let mut piece = vec![0; len.min(PIECE)];
        for offset in (0..len).step_by(PIECE) {
            let now = PIECE.min(len - offset);
            // SAFETY: within both ranges, and the piece is ours.
            unsafe {
                self.copy_and_wait(from, Direction::DeviceToHost, piece.as_mut_ptr(), src.add(offset), now)?;
                self.copy_and_wait(to, Direction::HostToDevice, dst.add(offset), piece.as_ptr(), now)?;
            }
        }
        Ok(())
    }

    /// Has `len` bytes at `address` registered with the driver once a device is in use: copies from and to them are
    /// then asynchronous and run at the speed of the link.
    ///
    /// # Safety
    /// The range stays mapped until the registration is dropped.
    pub unsafe fn register_host(&self, address: *mut u8, len: usize) -> HostRegistration {
        let vendor = self.state.vendor.as_ref().filter(|_| len != 0);
        // SAFETY: the caller's promise is the vendor's precondition.
        HostRegistration { inner: vendor.map(|vendor| unsafe { vendor.register_host(address, len) }) }
    }

    /// What became of the mappings of peers' memory.
    pub fn mappings(&self) -> &MappingCounts {
        &self.state.mappings
    }

    pub(crate) fn vendor(&self) -> Option<&dyn Vendor> {
        self.state.vendor.as_deref()
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
