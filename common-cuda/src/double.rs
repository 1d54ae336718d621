//! A second vendor, for tests: it shows that callers of [`Devices`](crate::Devices) know nothing of the first.
//!
//! Its device memory is host memory that faults when a CPU touches it: each allocation is mapped twice, once without
//! any access, which is the address that a program gets, and once for the vendor's own copies. A copy happens as late
//! as it may: when its completion is asked for the second time, so that who lets go of memory too early is found out.
//! It has one device, and exports nothing. Not built but by the feature `double`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::buffer::BufferKind;
use crate::copy::{Direction, EngineWork, Order, Packing};
use crate::devices::Devices;
use crate::error::DeviceError;
use crate::facts::{DeviceFacts, Facts};
use crate::ipc::{Exported, Given, NoExport};
use crate::location::{DeviceIndex, Location, MemoryClass};
use crate::spread::Spread;
use crate::vendor::{
    Vendor, VendorBatch, VendorBuffer, VendorCompletion, VendorMapping, VendorRegistration, VendorScratch,
};

/// The one context.
const CONTEXT: u64 = 1;
/// How often a completion says that it is not done.
const PATIENCE: u32 = 1;

impl Devices {
    /// Devices of the test vendor, with memory of their own.
    pub fn double() -> Devices {
        Devices::of(Arc::new(Double { state: Arc::default() }))
    }
}

struct Double {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    allocations: Mutex<Vec<Arc<Twice>>>,
    next_id: AtomicU64,
    registered: AtomicUsize,
}

impl State {
    fn around(&self, address: *const u8) -> Option<Arc<Twice>> {
        self.allocations.lock().iter().find(|allocation| allocation.holds(address)).cloned()
    }

    /// Where the vendor itself may touch what a program knows as `address`.
    fn reachable(&self, address: *const u8) -> *mut u8 {
        match self.around(address) {
            Some(allocation) => {
                allocation.seen.as_ptr().wrapping_add(address as usize - allocation.hidden.addr().get())
            }
            None => address.cast_mut(),
        }
    }
}

/// The same pages at two addresses.
struct Twice {
    hidden: NonNull<u8>,
    seen: NonNull<u8>,
    len: usize,
    id: u64,
    class: MemoryClass,
}

// SAFETY: both addresses are valid in every thread; what lies there is copied as raw memory.
unsafe impl Send for Twice {}
// SAFETY: as above.
unsafe impl Sync for Twice {}

impl Twice {
    fn new(len: usize, id: u64, class: MemoryClass) -> std::io::Result<Twice> {
        // SAFETY: the name is a C string, and the descriptor is closed below.
        let file = unsafe { libc::memfd_create(c"double".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let all = libc::PROT_READ | libc::PROT_WRITE;
        let access = if class == MemoryClass::Pinned { all } else { libc::PROT_NONE };
        // SAFETY: new mappings at addresses of the kernel's choice, of a file that is ours.
        let made = unsafe {
            let sized = libc::ftruncate(file, i64::try_from(len).unwrap_or(i64::MAX)) == 0;
            sized.then(|| (map(file, len, access), map(file, len, all)))
        };
        let error = std::io::Error::last_os_error();
        // SAFETY: mappings keep the file alive.
        unsafe { libc::close(file) };
        match made {
            Some((Some(hidden), Some(seen))) => Ok(Twice { hidden, seen, len, id, class }),
            _ => Err(error),
        }
    }

    fn holds(&self, address: *const u8) -> bool {
        (address as usize).checked_sub(self.hidden.addr().get()).is_some_and(|offset| offset < self.len)
    }
}

/// # Safety
/// The file has `len` bytes.
unsafe fn map(file: i32, len: usize, access: i32) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file, 0) };
    if address == libc::MAP_FAILED { None } else { NonNull::new(address.cast()) }
}

impl Drop for Twice {
    fn drop(&mut self) {
        // SAFETY: both mappings, which nobody uses any more.
        unsafe {
            libc::munmap(self.hidden.as_ptr().cast(), self.len);
            libc::munmap(self.seen.as_ptr().cast(), self.len);
        }
    }
}

fn refused(call: &'static str, object: impl Into<String>, reason: impl Into<String>) -> DeviceError {
    DeviceError { call, object: object.into(), reason: reason.into() }
}

impl Vendor for Double {
    fn expected(&self) -> &'static AtomicBool {
        static YES: AtomicBool = AtomicBool::new(true);
        &YES
    }

    fn present(&self) -> bool {
        true
    }

    fn classify(&self, address: *const u8, _len: usize) -> Location {
        self.state.around(address).map_or(Location::HOST, |allocation| Location {
            class: allocation.class,
            device: Some(DeviceIndex(0)),
            context: CONTEXT,
            buffer_id: allocation.id,
        })
    }

    fn allocation(&self, address: *const u8) -> Option<(*const u8, usize)> {
        self.state.around(address).map(|allocation| (allocation.hidden.as_ptr().cast_const(), allocation.len))
    }

    fn batch(&self, at: &Location, _direction: Direction, _order: Order) -> Result<Box<dyn VendorBatch>, DeviceError> {
        self.context_id(at)?;
        Ok(Box::new(Batch { state: self.state.clone(), rows: Vec::new() }))
    }

    fn kernel_reaches(&self, at: &Location, _address: *const u8) -> bool {
        at.context == CONTEXT
    }

    /// It likes to do all that it is offered.
    fn kernel_packs(&self, at: &Location, _host: (*const u8, usize), _work: EngineWork) -> bool {
        at.context == CONTEXT
    }

    fn packs_between(&self, at: &Location, _spread: &Spread) -> bool {
        at.context == CONTEXT
    }

    fn scratch(&self, _at: &Location, len: usize) -> Result<Option<Box<dyn VendorScratch>>, DeviceError> {
        let id = self.state.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let made = Twice::new(len, id, MemoryClass::Device);
        let allocation =
            Arc::new(made.map_err(|error| refused("allocate", format!("{len} bytes"), error.to_string()))?);
        self.state.allocations.lock().push(allocation.clone());
        Ok(Some(Box::new(Buffer { allocation, state: self.state.clone() })))
    }

    fn default_stream(&self, _at: &Location) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError> {
        Ok(None)
    }

    /// Nothing is ever pending in a default stream.
    fn moment(&self) -> u64 {
        0
    }

    fn settled_since(&self, _at: &Location, _moment: u64) -> bool {
        true
    }

    fn ask_default_stream(&self, _at: &Location) -> Result<bool, DeviceError> {
        Ok(true)
    }

    fn context_id(&self, at: &Location) -> Result<u64, DeviceError> {
        if at.context == CONTEXT { Ok(CONTEXT) } else { Err(refused("context_id", format!("{at:?}"), "not ours")) }
    }

    fn buffer_id(&self, address: *const u8) -> Option<u64> {
        self.state.around(address).map(|allocation| allocation.id)
    }

    fn export(&self, _at: &Location, _address: *const u8, _buffer_id: u64) -> Result<Exported, NoExport> {
        Err(NoExport::Kind)
    }

    fn import(
        &self,
        exported: &Exported,
        _given: &[Given],
        _into: &Location,
    ) -> Result<Box<dyn VendorMapping>, DeviceError> {
        Err(refused("import", format!("{exported:?}"), "this vendor maps no other process's memory"))
    }

    unsafe fn register_host(&self, _address: *mut u8, _len: usize) -> Box<dyn VendorRegistration> {
        self.state.registered.fetch_add(1, Ordering::Relaxed);
        Box::new(Registration(self.state.clone()))
    }

    fn initialise(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn facts(&self) -> Result<Facts, DeviceError> {
        let device = DeviceFacts {
            index: DeviceIndex(0),
            name: "double".to_owned(),
            uuid: self.uuid(DeviceIndex(0))?,
            pci: "0000:00:00.0".to_owned(),
            memory: 0,
            compute_capability: (0, 0),
            direct: self.direct_support(DeviceIndex(0))?,
            mapped: Err("the double maps none".to_owned()),
        };
        Ok(Facts {
            path: "double".into(),
            version: "0".to_owned(),
            simulated: true,
            devices: vec![device],
            links: Vec::new(),
        })
    }

    fn uuid(&self, device: DeviceIndex) -> Result<[u8; 16], DeviceError> {
        if device.0 == 0 { Ok([0xdb; 16]) } else { Err(refused("uuid", format!("{device:?}"), "there is one device")) }
    }

    fn allocate(
        &self,
        device: DeviceIndex,
        kind: BufferKind,
        len: usize,
    ) -> Result<Box<dyn VendorBuffer>, DeviceError> {
        self.uuid(device)?;
        let class = match kind {
            BufferKind::Pinned => MemoryClass::Pinned,
            BufferKind::Managed => return Err(refused("allocate", format!("{kind:?}"), "there is no such memory")),
            _ => MemoryClass::Device,
        };
        let id = self.state.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let made = Twice::new(len, id, class);
        let allocation =
            Arc::new(made.map_err(|error| refused("allocate", format!("{len} bytes"), error.to_string()))?);
        self.state.allocations.lock().push(allocation.clone());
        Ok(Box::new(Buffer { allocation, state: self.state.clone() }))
    }
}

struct Batch {
    state: Arc<State>,
    /// Destination, source, bytes.
    rows: Vec<(*mut u8, *const u8, usize)>,
}

impl VendorBatch for Batch {
    unsafe fn copy(&mut self, dst: *mut u8, src: *const u8, len: usize) {
        self.rows.push((dst, src, len));
    }

    unsafe fn copy_2d(&mut self, dst: (*mut u8, usize), src: (*const u8, usize), width: usize, rows: usize) {
        let row = |index| (dst.0.wrapping_add(index * dst.1), src.0.wrapping_add(index * src.1), width);
        self.rows.extend((0..rows).map(row));
    }

    unsafe fn copy_packed(&mut self, packing: &Packing<'_>) {
        packing.spread.rows(packing.position, packing.len, |rows| {
            let packed = (packing.packed.wrapping_offset(rows.to.0 as isize), rows.to.1);
            let user = (packing.user.wrapping_offset(rows.from.0 as isize), rows.from.1);
            let (to, from) = if packing.unpack { (user, packed) } else { (packed, user) };
            // SAFETY: rows of the stretch, which the caller vouches for.
            unsafe { self.copy_2d(to, (from.0.cast_const(), from.1), rows.width, rows.rows) };
        });
    }

    fn finish(self: Box<Self>) -> Result<Option<Box<dyn VendorCompletion>>, DeviceError> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        Ok(Some(Box::new(Copies { state: self.state, rows: self.rows, patience: PATIENCE })))
    }
}

struct Copies {
    state: Arc<State>,
    rows: Vec<(*mut u8, *const u8, usize)>,
    patience: u32,
}

// SAFETY: the addresses mean the same in every thread, and whoever began the copies left the memory to them.
unsafe impl Send for Copies {}

impl VendorCompletion for Copies {
    fn poll(&mut self) -> Result<bool, DeviceError> {
        if self.patience > 0 {
            self.patience -= 1;
            return Ok(false);
        }
        for (dst, src, len) in self.rows.drain(..) {
            // SAFETY: whoever began the copy keeps both ranges allocated until this says that it is done.
            unsafe { std::ptr::copy_nonoverlapping(self.state.reachable(src), self.state.reachable(dst), len) };
        }
        Ok(true)
    }

    fn recycle(self: Box<Self>) {}
}

struct Registration(Arc<State>);

impl VendorRegistration for Registration {
    fn registered(&self) -> bool {
        self.0.registered.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.registered.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Buffer {
    allocation: Arc<Twice>,
    state: Arc<State>,
}

impl VendorBuffer for Buffer {
    fn address(&self) -> *mut u8 {
        self.allocation.hidden.as_ptr()
    }

    unsafe fn write(&self, offset: usize, source: *const u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, self.allocation.seen.as_ptr().add(offset), len) };
        Ok(())
    }

    unsafe fn read(&self, offset: usize, destination: *mut u8, len: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.allocation.seen.as_ptr().add(offset), destination, len) };
        Ok(())
    }

    fn fill(&self, byte: u8) -> Result<(), DeviceError> {
        // SAFETY: the whole allocation, which lives as long as this.
        unsafe { std::ptr::write_bytes(self.allocation.seen.as_ptr(), byte, self.allocation.len) };
        Ok(())
    }
}

impl VendorScratch for Buffer {
    fn address(&self) -> *mut u8 {
        self.allocation.hidden.as_ptr()
    }

    fn lives(&self) -> bool {
        true
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.state.allocations.lock().retain(|allocation| !Arc::ptr_eq(allocation, &self.allocation));
    }
}
