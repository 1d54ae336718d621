//! Arguments other than handles and memory: where results go, ranks, tags, arrays and texts.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use cableway::{Any, Rank, Sender, Tag};

use crate::code::{Code, Failure};
use crate::status::{ANY_SOURCE, ANY_TAG};

/// The colour of a process that gets no communicator.
pub(crate) const UNDEFINED: c_int = -32766;

/// Where a function stores a result.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Checks the address, before the function has any effect.
    ///
    /// # Safety
    /// The address is null, or valid for writes during the call.
    pub(crate) unsafe fn new(address: *mut T, name: &str) -> Result<Out<T>, Failure> {
        NonNull::new(address).map(Out).ok_or_else(|| null(name))
    }

    pub(crate) fn set(&self, value: T) {
        // SAFETY: `new`'s caller promised that it can be written. What was there is not dropped.
        unsafe { self.0.write(value) }
    }
}

impl<T: Copy> Out<T> {
    /// Returns what is stored.
    ///
    /// # Safety
    /// The program has stored a value.
    pub(crate) unsafe fn get(&self) -> T {
        // SAFETY: `new`'s caller promised a valid address, and this one's a value.
        unsafe { self.0.read() }
    }
}

#[cold]
pub(crate) fn null(name: &str) -> Failure {
    Failure::argument(format!("{name} is a null pointer"))
}

/// Converts a rank. Whether the communicator has it is checked later.
#[inline]
pub(crate) fn rank(rank: c_int) -> Result<Rank, Failure> {
    Rank::try_from(rank)
        .map_err(|_| Failure::new(Code::ErrRank, format!("invalid rank {rank}: use a rank of 0 or above")))
}

/// Converts a rank or `CABLEWAY_ANY_SOURCE`.
#[inline]
pub(crate) fn sender(source: c_int) -> Result<Sender, Failure> {
    Ok(if source == ANY_SOURCE { Any.into() } else { rank(source)?.into() })
}

/// Converts a tag to receive, or `CABLEWAY_ANY_TAG`. Other negative tags are refused later.
#[inline]
pub(crate) fn tag(tag: c_int) -> Tag {
    if tag == ANY_TAG { Any.into() } else { tag.into() }
}

/// Returns an array of the program's.
///
/// # Safety
/// The address is null, or so many values are there and stay unchanged during `'a`.
pub(crate) unsafe fn array<'a, T>(address: *const T, len: usize, name: &str) -> Result<&'a [T], Failure> {
    check_array(address, len, name)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise; address and length were checked.
    Ok(unsafe { std::slice::from_raw_parts(address, len) })
}

/// Returns an array of the program's, to write to.
///
/// # Safety
/// The address is null, or so many values are there, which only this call accesses during `'a`.
pub(crate) unsafe fn array_mut<'a, T>(address: *mut T, len: usize, name: &str) -> Result<&'a mut [T], Failure> {
    check_array(address, len, name)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller's promise; address and length were checked.
    Ok(unsafe { std::slice::from_raw_parts_mut(address, len) })
}

fn check_array<T>(address: *const T, len: usize, name: &str) -> Result<(), Failure> {
    if len > 0 && address.is_null() {
        return Err(null(name));
    }
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(Failure::argument(format!("{name} cannot have {len} entries"))),
    }
}

/// Returns a text of the program's.
///
/// # Safety
/// The address is null, or a text that ends with a null byte is there and stays unchanged during `'a`.
pub(crate) unsafe fn text<'a>(address: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if address.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(address) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is no UTF-8: {}", text.to_string_lossy())))
}
