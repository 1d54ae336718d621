//! Handles: what the C program holds. Each begins with a word that says what it names, so that a handle of another kind
//! is refused.

use std::ptr::NonNull;

use crate::arguments::Out;
use crate::code::{Code, Failure};

/// What a handle can name.
pub(crate) trait Named {
    /// The first word of such a handle, unlike what memory usually holds.
    const TAG: u64;
    /// Its kind, for errors.
    const NAME: &'static str;
}

/// The first word of a handle that was freed.
const FREED: u64 = 0x7b4f_c1d6_0bad_f4ee;

/// A handle as the C program knows it: by its address only.
#[repr(C)]
pub(crate) struct Handle<T> {
    tag: u64,
    value: T,
}

impl<T: Named> Handle<T> {
    pub(crate) fn new(value: T) -> Box<Self> {
        Box::new(Handle { tag: T::TAG, value })
    }

    /// Returns what the handle names.
    ///
    /// # Safety
    /// The handle is null or a handle of any kind that is not freed during `'a`. If the value cannot be shared, no other
    /// thread uses the handle meanwhile.
    #[inline]
    pub(crate) unsafe fn get<'a>(handle: *const Self) -> Result<&'a T, Failure> {
        // SAFETY: the caller's promise.
        let handle = unsafe { check(handle)? };
        // SAFETY: its kind is right, and it lives long enough.
        Ok(unsafe { &handle.as_ref().value })
    }

    /// Takes back the memory of a handle, and what it names.
    ///
    /// # Safety
    /// The handle is null or a handle of any kind, came from a box, and nobody uses it any more.
    pub(crate) unsafe fn take(handle: *const Self) -> Result<T, Failure> {
        // SAFETY: the caller's promise.
        let handle = unsafe { check(handle)? };
        // SAFETY: its kind is right, and the caller passes the ownership.
        let mut this = unsafe { Box::from_raw(handle.as_ptr()) };
        // A later use is often found by this, though nothing promises it.
        // SAFETY: the memory is still this box's.
        unsafe { (&raw mut this.tag).write_volatile(FREED) };
        Ok(this.value)
    }
}

/// # Safety
/// The same as that of [`Handle::get`].
#[inline]
unsafe fn check<T: Named>(handle: *const Handle<T>) -> Result<NonNull<Handle<T>>, Failure> {
    let bad = |what: &str| Err(Failure::new(Code::ErrHandle, format!("a {} is needed, not {what}", T::NAME)));
    let Some(pointer) = NonNull::new(handle.cast_mut()) else { return bad("a null pointer") };
    if !pointer.is_aligned() {
        return bad(&format!("{pointer:p}, which is no handle"));
    }
    // Volatile, since a freed handle's word may be read.
    // SAFETY: the caller promises a handle, and each begins with such a word.
    match unsafe { pointer.cast::<u64>().read_volatile() } {
        tag if tag == T::TAG => Ok(pointer),
        FREED => bad(&format!("{pointer:p}, which was freed")),
        _ => bad(&format!("{pointer:p}, which is another kind of handle or none")),
    }
}

/// Frees what a handle names, and stores a null pointer there. A null handle has no effect.
///
/// # Safety
/// The address is null or holds a handle or null, and nobody uses the handle any more.
pub(crate) unsafe fn free<T: Named>(handle: *mut *mut Handle<T>, end: impl FnOnce(T)) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let place = Out::new(handle, "the place of the handle")?;
        let handle = place.get();
        if !handle.is_null() {
            let value = Handle::take(handle)?;
            place.set(std::ptr::null_mut());
            end(value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Left(u32);
    struct Right;

    impl Named for Left {
        const TAG: u64 = 1;
        const NAME: &'static str = "left";
    }
    impl Named for Right {
        const TAG: u64 = 2;
        const NAME: &'static str = "right";
    }

    #[test]
    fn handles_of_another_kind_are_refused() {
        let handle: *mut Handle<Left> = Box::into_raw(Handle::new(Left(7)));
        let refused = |failure: Failure| (failure.code, failure.text);
        // SAFETY: a handle, or null.
        unsafe {
            assert_eq!(Handle::get(handle).unwrap().0, 7);
            let (code, text) = refused(Handle::<Right>::get(handle.cast()).err().unwrap());
            assert_eq!(code, Code::ErrHandle);
            assert!(text.starts_with("a right is needed, not 0x") && text.ends_with("another kind of handle or none"));
            let (_, text) = refused(Handle::<Right>::get(std::ptr::null()).err().unwrap());
            assert_eq!(text, "a right is needed, not a null pointer");
            assert!(Handle::<Right>::get(handle.cast::<u8>().wrapping_add(1).cast()).is_err());
            assert_eq!(Handle::take(handle).unwrap().0, 7);
        }
    }
}
