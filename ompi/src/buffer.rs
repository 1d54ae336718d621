//! Converts the shim's buffer descriptions, and creates the layouts of datatypes.

use std::ffi::c_void;

use cableway_common_cuda::Devices;
use cableway_datatype::{Convertor, Datatype, Error, KeptLayouts, Layout, Predefined};
use cableway_pml::Buffer;
use parking_lot::Mutex;

use crate::boundary::BufferDescription;

/// Layouts of types that were made before, by Open MPI's descriptions of them.
static KEPT: Mutex<KeptLayouts> = Mutex::new(KeptLayouts::new());

/// Returns the engine's view of a buffer.
///
/// # Safety
/// The description's layout is null, or from [`create_layout`] or [`known_layout`] and not freed.
#[inline]
pub(crate) unsafe fn buffer_of<'a>(description: *const BufferDescription) -> Buffer<'a> {
    // SAFETY: the shim passes a valid description.
    let description = unsafe { &*description };
    // SAFETY: the caller's promise.
    match unsafe { description.layout.cast::<Layout>().as_ref() } {
        None => Buffer::bytes(description.address.cast(), description.len),
        Some(layout) => Buffer::typed(description.address.cast(), description.count, layout),
    }
}

/// Packs a host or device buffer into `len` bytes of host memory.
///
/// # Safety
/// As for [`buffer_of`]. The buffer is valid for reads, and `to` for writes of `len` bytes.
pub(crate) unsafe fn pack(
    description: &BufferDescription,
    devices: &Devices,
    to: *mut u8,
    len: u64,
) -> Result<(), Error> {
    let bytes = Predefined::Byte.datatype().commit();
    // SAFETY: the caller's promise.
    let (layout, count) = match unsafe { description.layout.cast::<Layout>().as_ref() } {
        None => (&bytes, description.len),
        Some(layout) => (layout, description.count),
    };
    let base = description.address.cast_const().cast();
    let location = layout.classify(base, count, devices);
    // SAFETY: the caller's promise; the location is that of this buffer.
    unsafe { Convertor::for_send(layout, base, count, location, devices).pack(to, len as usize) }.map(|_| ())
}

/// Blocks of bytes in packing order, and the bounds of the datatype that they form.
pub(crate) struct Blocks<'a> {
    pub(crate) offsets: &'a [i64],
    pub(crate) lengths: &'a [i64],
    pub(crate) lower_bound: i64,
    pub(crate) extent: i64,
}

/// Creates a layout, and keeps it by a description of its type unless that is empty. Returns null if the blocks form no valid
/// datatype.
pub(crate) fn create_layout(blocks: &Blocks<'_>, description: &[i64]) -> *mut c_void {
    let &Blocks { offsets, lengths, lower_bound, extent } = blocks;
    let layout = Datatype::hindexed(lengths, offsets, &Predefined::Byte.datatype())
        .and_then(|datatype| Datatype::resized(&datatype, lower_bound, extent))
        .map(|datatype| datatype.commit());
    match layout {
        Ok(layout) => {
            if !description.is_empty() {
                let forgotten = KEPT.lock().keep(description, &layout);
                // The lock is free.
                drop(forgotten);
            }
            Box::into_raw(Box::new(layout)).cast()
        }
        Err(error) => {
            log::warn!("cannot use a derived datatype of {} blocks: {error}", offsets.len());
            std::ptr::null_mut()
        }
    }
}

/// Returns a layout that is kept for types with this description. Returns null if there is none.
pub(crate) fn known_layout(description: &[i64]) -> *mut c_void {
    let kept = KEPT.lock().find(description);
    kept.map_or(std::ptr::null_mut(), |layout| Box::into_raw(Box::new(layout)).cast())
}

/// # Safety
/// `layout` is null or from [`create_layout`] or [`known_layout`], is freed only once, and no operation uses it.
pub(crate) unsafe fn free_layout(layout: *mut c_void) {
    if !layout.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(layout.cast::<Layout>()) });
    }
}
