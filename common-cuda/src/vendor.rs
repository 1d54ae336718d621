//! What a vendor of devices supplies.
//!
//! Contract of a vendor: every method may be called from any thread, with any or no context current, and leaves the
//! caller's current context as it was. None creates a context, but for [`Vendor::initialise`] and
//! [`Vendor::allocate`], which a program calls that asks for exactly that. None aborts: failures come back as
//! [`DeviceError`].
//!
//! There is one implementation today (`cuda/`), the absence of one ([`Devices::none`](crate::Devices::none)), and one for
//! tests (`double.rs`), on which the engine's tests run to show that a second vendor changes no caller. That is another
//! folder beside `cuda/` and another arm in `Devices::open`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::buffer::BufferKind;
use crate::copy::{Direction, EngineWork, Order, Packing, Within};
use crate::costs::{CostReport, Costs};
use crate::direct::{DirectSupport, WritesSeen};
use crate::error::DeviceError;
use crate::facts::Facts;
use crate::ipc::{Exported, Given, NoExport};
use crate::location::{DeviceIndex, Location};
use crate::spread::Spread;
use crate::strided::{Strided, rows};

/// A vendor of devices.
pub(crate) trait Vendor: Send + Sync {
    /// False while its driver cannot turn up in this process, so that all memory is host memory. Looked at before each
    /// question.
    #[cfg_attr(not(any(feature = "cuda", feature = "double")), expect(dead_code))]
    fn expected(&self) -> &'static AtomicBool;
    /// Whether a driver is in the process.
    fn present(&self) -> bool;
    /// Whether it costs next to nothing to tell that there is none, so that all memory is host memory.
    #[inline]
    fn is_absent(&self) -> bool {
        false
    }
    /// As [`Devices::classify`](crate::Devices::classify), of memory that may be a device's.
    fn classify(&self, address: *const u8, len: usize) -> Location;
    /// The allocation (first byte and length) around an address of device memory; none if the driver does not say.
    fn allocation(&self, address: *const u8) -> Option<(*const u8, usize)>;
    /// Begins copies.
    fn batch(&self, at: &Location, direction: Direction, order: Order) -> Result<Box<dyn VendorBatch>, DeviceError>;
    /// Whether kernels of ours make copies in the context of `at` at present, so that [`VendorBatch::copy_strided`] is
    /// fast there.
    fn kernels(&self, _at: &Location) -> bool {
        false
    }
    /// As [`Devices::kernel_reaches`](crate::Devices::kernel_reaches).
    fn kernel_reaches(&self, _at: &Location, _address: *const u8) -> bool {
        false
    }
    /// As [`Devices::kernel_packs`](crate::Devices::kernel_packs).
    fn kernel_packs(&self, _at: &Location, _host: (*const u8, usize), _work: EngineWork) -> bool {
        false
    }
    /// As [`Devices::packs_between`](crate::Devices::packs_between).
    fn packs_between(&self, _at: &Location, _spread: &Spread) -> bool {
        false
    }
    /// As [`Devices::scratch`](crate::Devices::scratch).
    fn scratch(&self, _at: &Location, _len: usize) -> Result<Option<Box<dyn VendorScratch>>, DeviceError> {
        Ok(None)
    }
    /// What is over once the work that the default stream of `at`'s context holds now is; none if that is now.
    fn default_stream(&self, at: &Location) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError>;
    /// This moment, for `settled_since`.
    fn moment(&self) -> u64;
    /// Whether the work that the default stream of `at`'s context held at a moment is known to be done.
    fn settled_since(&self, at: &Location, moment: u64) -> bool;
    /// Asks whether that stream has nothing left to do.
    fn ask_default_stream(&self, at: &Location) -> Result<bool, DeviceError>;
    /// The id of the context to work in on memory at `at`.
    fn context_id(&self, at: &Location) -> Result<u64, DeviceError>;
    /// The driver's id of the allocation at an address, never reused; none if it knows of none.
    fn buffer_id(&self, address: *const u8) -> Option<u64>;
    /// What another process needs to map the allocation around an address, whose id is given. Of memory of a pool, in the
    /// place of that one's number, the driver's handle of it, which another pool may have had and may get.
    fn export(&self, at: &Location, address: *const u8, buffer_id: u64) -> Result<Exported, NoExport>;
    /// A descriptor of what was exported of memory at `at`, for the process that maps it; none if that is no more.
    fn descriptor(&self, _at: &Location, exported: &Exported) -> Result<Option<OwnedFd>, DeviceError> {
        let object = format!("the allocation at {:#x}", exported.base);
        Err(DeviceError { call: "descriptor", object, reason: "this vendor has none".to_owned() })
    }
    /// A descriptor of the pool that memory at `at` is allocated in now, by the driver's handle of it.
    fn pool_descriptor(&self, _at: &Location, pool: u64) -> Result<OwnedFd, DeviceError> {
        let object = format!("the pool {pool:#x}");
        Err(DeviceError { call: "pool_descriptor", object, reason: "this vendor has none".to_owned() })
    }
    /// Maps another process's allocation, or its pool, into the context of `into`, with what was given of it where it is passed by
    /// descriptors.
    fn import(
        &self,
        exported: &Exported,
        given: &[Given],
        into: &Location,
    ) -> Result<Box<dyn VendorMapping>, DeviceError>;
    /// The same of memory that was found at `at`, whatever context is current.
    fn allocation_at(&self, _at: &Location, address: *const u8) -> Option<(*const u8, usize)> {
        self.allocation(address)
    }
    /// As [`Devices::direct_support`](crate::Devices::direct_support).
    fn direct_support(&self, _device: DeviceIndex) -> Result<DirectSupport, DeviceError> {
        Ok(DirectSupport { dma_buf: false, peer_memory: false, writes: WritesSeen::Never })
    }
    /// As [`Devices::dma_buf`](crate::Devices::dma_buf).
    fn dma_buf(&self, _at: &Location, address: u64, _len: usize) -> Result<OwnedFd, DeviceError> {
        Err(DeviceError { call: "dma_buf", object: format!("{address:#x}"), reason: "this vendor has none".to_owned() })
    }
    /// As [`Devices::direct_capable`](crate::Devices::direct_capable).
    fn direct_capable(&self, _address: *const u8) -> Option<bool> {
        None
    }
    /// As [`Devices::flush_remote_writes`](crate::Devices::flush_remote_writes).
    fn flush_remote_writes(&self, _at: &Location) -> Result<(), DeviceError> {
        Ok(())
    }
    /// As [`Devices::synchronise_operations`](crate::Devices::synchronise_operations).
    fn synchronise_operations(&self, _at: &Location, _address: *const u8) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Registers now or later; dropping what is returned unregisters.
    ///
    /// # Safety
    /// The range stays mapped until what is returned is dropped.
    unsafe fn register_host(&self, address: *mut u8, len: usize) -> Box<dyn VendorRegistration>;
    /// Loads and initialises the driver, on the program's demand.
    fn initialise(&self) -> Result<(), DeviceError>;
    /// What the driver says about itself and its devices.
    fn facts(&self) -> Result<Facts, DeviceError>;
    /// What copies cost, as far as that was measured.
    fn costs(&self) -> Option<&Arc<Costs>> {
        None
    }
    /// As [`Devices::report_costs`](crate::Devices::report_costs).
    fn report_costs(&self, _measure: &[DeviceIndex]) -> Result<Vec<CostReport>, DeviceError> {
        Ok(Vec::new())
    }
    /// As [`Devices::stop_measuring`](crate::Devices::stop_measuring).
    fn stop_measuring(&self) {}
    /// The identity of a device across processes.
    fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], DeviceError>;
    /// Allocates in the device's primary context, which it retains.
    fn allocate(&self, device: DeviceIndex, kind: BufferKind, len: usize)
    -> Result<Box<dyn VendorBuffer>, DeviceError>;
}

/// Copies in the making. Dropped unfinished, it has done nothing.
pub(crate) trait VendorBatch {
    /// Adds a copy.
    ///
    /// # Safety
    /// As [`CopyBatch::copy`](crate::CopyBatch::copy).
    unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize);
    /// Adds a copy of rows.
    ///
    /// # Safety
    /// As [`CopyBatch::copy_2d`](crate::CopyBatch::copy_2d).
    unsafe fn copy_2d(&mut self, dst: (*mut u8, usize), src: (*const u8, usize), width: usize, rows: usize);
    /// Says that the host's side of all copies is page-locked.
    fn page_locked(&mut self) {}
    /// Says that a kernel in the batch's context reaches all memory of its plain copies, too.
    fn reachable(&mut self, _within: Within) {}
    /// Adds a copy of the first `len` bytes of blocks at regular distances; a side is the address that they are
    /// relative to, and the blocks, which have as many bytes at least. A kernel in the batch's context reaches both.
    ///
    /// # Safety
    /// As [`CopyBatch::copy_strided`](crate::CopyBatch::copy_strided).
    unsafe fn copy_strided(&mut self, dst: (*mut u8, &Strided), src: (*const u8, &Strided), len: u64) {
        rows(dst.1, src.1, len, |rows| {
            let to = (dst.0.wrapping_offset(rows.to.0 as isize), rows.to.1);
            let from = (src.0.wrapping_offset(rows.from.0 as isize), rows.from.1);
            // SAFETY: rows of the two sides, which the caller vouches for.
            unsafe { self.copy_2d(to, from, rows.width, rows.rows) }
        });
    }
    /// Adds a stretch of a message to pack or unpack.
    ///
    /// # Safety
    /// As [`CopyBatch::copy_packed`](crate::CopyBatch::copy_packed).
    unsafe fn copy_packed(&mut self, packing: &Packing<'_>);
    /// Hands the copies to the device. None if there were none, or they are done already.
    fn finish(self: Box<Self>) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError>;
}

/// Asynchronous work of a vendor's.
pub(crate) trait VendorCompletion: Send {
    /// Whether it is done. Not asked again after an answer other than `Ok(false)`.
    fn poll(&mut self) -> Result<bool, DeviceError>;
    /// Takes back what serves the next operation, once this one is done.
    fn recycle(self: Box<Self>);
}

/// Another process's allocation, mapped here until dropped.
pub(crate) trait VendorMapping: Send + Sync {
    /// Its first byte; of a pool null.
    fn address(&self) -> *mut u8;
    /// If it is a pool, what was exported that is allocated in it. Its owner may free that when the last of these is
    /// dropped.
    fn within(self: Arc<Self>, exported: &Exported) -> Result<Arc<dyn VendorMapping>, DeviceError> {
        let reason = "what is mapped is no pool".to_owned();
        Err(DeviceError { call: "within", object: format!("{} bytes of another process", exported.len), reason })
    }
}

/// Device memory of our own; freed by dropping.
pub(crate) trait VendorScratch: Send + Sync {
    /// Its first byte.
    fn address(&self) -> *mut u8;
    /// Whether its context, and with it the memory, is there still.
    fn lives(&self) -> bool;
}

/// A registered range; unregistered by dropping.
pub(crate) trait VendorRegistration: Send + Sync {
    /// Whether the driver has it registered at present.
    fn registered(&self) -> bool;
}

/// An allocation of a vendor's; freed by dropping.
pub(crate) trait VendorBuffer: Send + Sync {
    fn address(&self) -> *mut u8;
    /// Copies from host memory as a program's own synchronous copy would.
    ///
    /// # Safety
    /// The buffer has `len` bytes from `offset` on, and so has `source`.
    unsafe fn write(&self, offset: usize, source: *const u8, len: usize) -> Result<(), DeviceError>;
    /// Copies to host memory.
    ///
    /// # Safety
    /// As for `write`.
    unsafe fn read(&self, offset: usize, destination: *mut u8, len: usize) -> Result<(), DeviceError>;
    /// Sets every byte.
    fn fill(&self, byte: u8) -> Result<(), DeviceError>;
}
