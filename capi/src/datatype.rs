//! Datatypes: which bytes of an element are data.

use std::ffi::c_int;

use cableway::{Layout, Predefined};

use crate::arguments::{self, Out};
use crate::code::Failure;
use crate::handle::{Handle, Named, free};
use crate::outcome::guard;

/// A datatype, ready for communication.
pub(crate) struct Datatype {
    datatype: cableway::Datatype,
    layout: Layout,
}

impl Named for Datatype {
    const TAG: u64 = 0x7b4f_c1d6_da7a_7e9e;
    const NAME: &'static str = "datatype";
}

impl Datatype {
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// A handle of the C program, or null for a byte.
type Base = *const Handle<Datatype>;

/// # Safety
/// The same as that of [`Handle::get`].
unsafe fn base(base: Base) -> Result<cableway::Datatype, Failure> {
    if base.is_null() {
        return Ok(Predefined::Byte.datatype());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { Handle::get(base)? }.datatype.clone())
}

/// Makes a datatype and stores its handle.
///
/// # Safety
/// `made` is null, or valid for writes.
unsafe fn make(
    made: *mut *mut Handle<Datatype>,
    construct: impl FnOnce() -> Result<Result<cableway::Datatype, cableway::datatype::Error>, Failure>,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { Out::new(made, "the place for the datatype")? };
        let datatype = construct()?.map_err(cableway::Error::from)?;
        let layout = datatype.commit();
        made.set(Box::into_raw(Handle::new(Datatype { datatype, layout })));
        Ok(())
    })
}

/// `count` elements without gaps.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_contiguous(count: i64, old: Base, made: *mut *mut Handle<Datatype>) -> c_int {
    // SAFETY: the C program's promises.
    unsafe { make(made, || Ok(cableway::Datatype::contiguous(count, &base(old)?))) }
}

/// Blocks at equal distances, counted in elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_vector(
    count: i64,
    block_length: i64,
    stride: i64,
    old: Base,
    made: *mut *mut Handle<Datatype>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe { make(made, || Ok(cableway::Datatype::vector(count, block_length, stride, &base(old)?))) }
}

/// Blocks at equal distances, counted in bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_hvector(
    count: i64,
    block_length: i64,
    stride: i64,
    old: Base,
    made: *mut *mut Handle<Datatype>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe { make(made, || Ok(cableway::Datatype::hvector(count, block_length, stride, &base(old)?))) }
}

/// Blocks of any lengths at any displacements, counted in elements.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_indexed(
    count: usize,
    block_lengths: *const i64,
    displacements: *const i64,
    old: Base,
    made: *mut *mut Handle<Datatype>,
) -> c_int {
    let construct = || {
        // SAFETY: the C program's promises.
        let (lengths, displacements, old) = unsafe {
            let lengths = arguments::array(block_lengths, count, "the array of block lengths")?;
            (lengths, arguments::array(displacements, count, "the array of displacements")?, base(old)?)
        };
        Ok(cableway::Datatype::indexed(lengths, displacements, &old))
    };
    // SAFETY: the C program's promises.
    unsafe { make(made, construct) }
}

/// Blocks of different types at displacements in bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_struct(
    count: usize,
    block_lengths: *const i64,
    displacements: *const i64,
    types: *const Base,
    made: *mut *mut Handle<Datatype>,
) -> c_int {
    let construct = || {
        // SAFETY: the C program's promises.
        let (lengths, displacements, types) = unsafe {
            let lengths = arguments::array(block_lengths, count, "the array of block lengths")?;
            let types = arguments::array(types, count, "the array of types")?;
            let types = types.iter().map(|&old| base(old)).collect::<Result<Vec<_>, _>>()?;
            (lengths, arguments::array(displacements, count, "the array of displacements")?, types)
        };
        Ok(cableway::Datatype::structure(lengths, displacements, &types))
    };
    // SAFETY: the C program's promises.
    unsafe { make(made, construct) }
}

/// The same data with another lower bound and extent.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_resized(
    old: Base,
    lower_bound: i64,
    extent: i64,
    made: *mut *mut Handle<Datatype>,
) -> c_int {
    // SAFETY: the C program's promises.
    unsafe { make(made, || Ok(cableway::Datatype::resized(&base(old)?, lower_bound, extent))) }
}

/// The bytes of data in an element.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_size(datatype: Base, size: *mut u64) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        Out::new(size, "the place for the size")?.set(base(datatype)?.size());
        Ok(())
    })
}

/// The bytes from one element to the next.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_extent(datatype: Base, extent: *mut i64) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        Out::new(extent, "the place for the extent")?.set(base(datatype)?.extent());
        Ok(())
    })
}

/// Frees a datatype.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_free(datatype: *mut *mut Handle<Datatype>) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { free(datatype, drop) })
}
