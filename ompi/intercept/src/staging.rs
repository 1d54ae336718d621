//! Host copies, which the component makes.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::interpose::{Handle, SUCCESS};

pub(crate) const READ: c_int = 1;
pub(crate) const WRITE: c_int = 2;

/// The component's functions: `struct cableway_intercept` of `shim/intercept.h`. They return MPI's error codes.
#[repr(C)]
#[derive(Debug)]
pub struct Component {
    /// The version of this layout.
    version: u32,
    present: unsafe extern "C" fn() -> bool,
    on_device: unsafe extern "C" fn(*const c_void, u64) -> bool,
    stage: unsafe extern "C" fn(*mut Handle, *mut *mut c_void, usize, Handle, c_int) -> c_int,
    stage_bytes: unsafe extern "C" fn(*mut Handle, *mut *mut c_void, usize, c_int) -> c_int,
    fill: unsafe extern "C" fn(Handle) -> c_int,
    finish: unsafe extern "C" fn(Handle, c_int) -> c_int,
    request: unsafe extern "C" fn(*mut Handle, Handle) -> c_int,
    release: unsafe extern "C" fn(Handle),
}

const VERSION: u32 = 2;
static COMPONENT: AtomicPtr<Component> = AtomicPtr::new(null_mut());

/// Has calls use a component; false if its functions are of another version, and then calls go straight on.
///
/// # Safety
/// `component` is valid as long as the process runs.
pub unsafe fn attach(component: *const Component) -> bool {
    // SAFETY: the version comes first in every version.
    let known = unsafe { (*component).version } == VERSION;
    if known {
        COMPONENT.store(component.cast_mut(), Ordering::Release);
    }
    known
}

/// Returns the component if it is loaded and a driver is, too.
fn component() -> Option<&'static Component> {
    // SAFETY: null, or what `attach` was given.
    let component = unsafe { COMPONENT.load(Ordering::Acquire).as_ref() }?;
    // SAFETY: the component's function.
    unsafe { (component.present)() }.then_some(component)
}

/// Answers whether the component is there. It understands device memory as soon as a driver is loaded.
pub(crate) fn attached() -> bool {
    !COMPONENT.load(Ordering::Acquire).is_null()
}

pub(crate) fn on_device(address: *const c_void, len: usize) -> bool {
    // SAFETY: the component's function; any address may be asked about.
    component().is_some_and(|component| unsafe { (component.on_device)(address, len as u64) })
}

/// The host copies of one call. Without a component, or without a driver, there are none.
pub(crate) struct Staged {
    component: Option<&'static Component>,
    copies: Handle,
    error: c_int,
}

impl Staged {
    pub(crate) fn new() -> Self {
        Staged { component: component(), copies: null_mut(), error: SUCCESS }
    }

    /// Stages `count` elements at `*buffer`, which becomes the address to be used. MPI refuses negative counts itself.
    ///
    /// # Safety
    /// MPI's rules for a buffer of a call.
    pub(crate) unsafe fn elements(&mut self, buffer: &mut *mut c_void, count: c_int, datatype: Handle, access: c_int) {
        let (Some(component), Ok(count)) = (self.component, usize::try_from(count)) else { return };
        if self.error == SUCCESS && count != 0 && !datatype.is_null() {
            // SAFETY: the caller's promise.
            self.error = unsafe { (component.stage)(&mut self.copies, buffer, count, datatype, access) };
        }
    }

    /// Stages the bytes from `start` to `end` of `*buffer`.
    ///
    /// # Safety
    /// As [`elements`](Self::elements).
    pub(crate) unsafe fn bytes(&mut self, buffer: &mut *mut c_void, start: isize, end: isize, access: c_int) {
        let len = usize::try_from(end.saturating_sub(start));
        let (Some(component), Ok(len)) = (self.component, len) else { return };
        if self.error == SUCCESS && len != 0 && start >= 0 {
            let mut at = buffer.wrapping_byte_offset(start);
            // SAFETY: the caller's promise.
            self.error = unsafe { (component.stage_bytes)(&mut self.copies, &mut at, len, access) };
            *buffer = at.wrapping_byte_offset(-start);
        }
    }

    /// Answers whether nothing had to be copied.
    pub(crate) fn is_empty(&self) -> bool {
        self.copies.is_null()
    }

    /// Copies in what the call reads. The error of a step that failed; then all is undone.
    pub(crate) fn fill(&mut self) -> Result<(), c_int> {
        if let (Some(component), SUCCESS, false) = (self.component, self.error, self.copies.is_null()) {
            // SAFETY: the component's copies.
            self.error = unsafe { (component.fill)(self.copies) };
        }
        if self.error == SUCCESS { Ok(()) } else { Err(self.error) }
    }

    /// After the call answered `code`: copies back what it wrote. Returns the code of the whole.
    pub(crate) fn finish(mut self, code: c_int) -> c_int {
        match (self.component, self.take()) {
            // SAFETY: the component's copies, which it takes back.
            (Some(component), Some(copies)) => unsafe { (component.finish)(copies, code) },
            _ => code,
        }
    }

    /// Passes the copies to the request of a nonblocking call. Its completion copies back what the call wrote.
    ///
    /// # Safety
    /// `request` is the request of the call.
    pub(crate) unsafe fn finish_with_request(mut self, request: *mut Handle) -> c_int {
        match (self.component, self.take()) {
            // SAFETY: the component's copies, which it takes back.
            (Some(component), Some(copies)) => unsafe { (component.request)(request, copies) },
            _ => SUCCESS,
        }
    }

    fn take(&mut self) -> Option<Handle> {
        let copies = std::mem::replace(&mut self.copies, null_mut());
        (!copies.is_null()).then_some(copies)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let (Some(component), Some(copies)) = (self.component, self.take()) {
            // SAFETY: the component's copies, which it takes back.
            unsafe { (component.release)(copies) };
        }
    }
}

// SAFETY: copies belong to one owner at a time; the component locks what it shares.
unsafe impl Send for Staged {}
