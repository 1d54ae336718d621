//! The objects that the loader has mapped, read with every address checked.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null;
use std::sync::atomic::AtomicUsize;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// A type that may be read from an object.
///
/// # Safety
/// Every pattern of bits is a value. What changes while it is looked at is atomic.
pub(super) unsafe trait Plain {}

// SAFETY: any bits are a number.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for AtomicUsize {}

/// An object in memory. It is only lent out under the loader's lock, which keeps it mapped.
pub(super) struct Object {
    base: usize,
    segments: Vec<Segment>,
    dynamic: Range<usize>,
}

/// Part of a file, as it is mapped.
struct Segment {
    addresses: Range<usize>,
    readable: bool,
    writable: bool,
}

impl Object {
    /// Returns what is added to addresses in the file to get addresses in memory.
    pub(super) fn base(&self) -> usize {
        self.base
    }

    /// Returns the range of the dynamic section.
    pub(super) fn dynamic(&self) -> Range<usize> {
        self.dynamic.clone()
    }

    /// Answers whether an address is in one of the segments.
    pub(super) fn holds(&self, address: usize) -> bool {
        self.segments.iter().any(|segment| segment.addresses.contains(&address))
    }

    /// Returns `count` values at an address. None if they are not aligned, or not wholly in one readable segment.
    pub(super) fn table<T: Plain>(&self, address: usize, count: usize) -> Option<&[T]> {
        let end = address.checked_add(count.checked_mul(size_of::<T>())?)?;
        let aligned = address.is_multiple_of(align_of::<T>());
        let held =
            |segment: &Segment| segment.readable && segment.addresses.start <= address && end <= segment.addresses.end;
        if !aligned || address == 0 || !self.segments.iter().any(held) {
            return None;
        }
        // SAFETY: the loader says that this is mapped and readable, and keeps it so while the object exists. Any bits
        // are a `T`. The loader wrote the tables before it listed the object, and what changes later is atomic.
        Some(unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address), count) })
    }

    /// Returns one value.
    pub(super) fn value<T: Plain>(&self, address: usize) -> Option<&T> {
        self.table(address, 1)?.first()
    }

    /// Returns the values from an address to the end of its segment.
    pub(super) fn rest<T: Plain>(&self, address: usize) -> Option<&[T]> {
        let segment = self.segments.iter().find(|segment| segment.addresses.contains(&address))?;
        self.table(address, (segment.addresses.end - address) / size_of::<T>())
    }

    /// Returns a word of a segment that is writable while the object is loaded. Its page may be protected now.
    pub(super) fn writable_word(&self, address: usize) -> Option<&AtomicUsize> {
        let writable = |segment: &Segment| segment.writable && segment.addresses.contains(&address);
        if !self.segments.iter().any(writable) {
            return None;
        }
        self.value(address)
    }
}

/// Calls a function with each object of this namespace, under the lock that keeps objects mapped.
pub(super) fn each(visit: &mut dyn FnMut(&Object)) {
    extern "C" fn one(info: *mut libc::dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader's own record, and the reference that `each` passes.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<&mut dyn FnMut(&Object)>()) };
        // A panic must not pass through the loader. It ends the walk.
        catch_unwind(AssertUnwindSafe(|| visit(&object_of(info)))).is_err().into()
    }
    let mut visit = visit;
    // SAFETY: the function takes what it is passed, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(one), (&raw mut visit).cast()) };
}

fn object_of(info: &libc::dl_phdr_info) -> Object {
    let base = info.dlpi_addr as usize;
    let headers = match usize::from(info.dlpi_phnum) {
        0 => &[],
        // SAFETY: the loader's table has as many entries.
        count => unsafe { std::slice::from_raw_parts(info.dlpi_phdr, count) },
    };
    let addresses = |header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.saturating_add(header.p_memsz as usize)
    };
    let of_type = |kind: u32| headers.iter().filter(move |header| header.p_type == kind);
    let segments = of_type(PT_LOAD).map(|header| Segment {
        addresses: addresses(header),
        readable: header.p_flags & PF_R != 0,
        writable: header.p_flags & PF_W != 0,
    });
    let segments = segments.collect();
    let dynamic = of_type(PT_DYNAMIC).map(addresses).next().unwrap_or(0..0);
    Object { base, segments, dynamic }
}

/// Waits for the threads that are loading or unloading an object now.
pub(super) fn wait_for_loading() {
    // SAFETY: the program's own handle, which dlopen gives out under the lock that it holds while it loads.
    unsafe {
        let program = libc::dlopen(null(), libc::RTLD_LAZY);
        if !program.is_null() {
            libc::dlclose(program);
        }
    }
}

#[cfg(test)]
impl Object {
    /// An object of one segment with anything in it.
    ///
    /// # Safety
    /// The addresses can be read as long as the object exists.
    pub(super) unsafe fn of_one_segment(addresses: Range<usize>, dynamic: Range<usize>) -> Self {
        let base = addresses.start;
        Object { base, segments: vec![Segment { addresses, readable: true, writable: true }], dynamic }
    }
}
