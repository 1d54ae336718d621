//! Functions of Open MPI that combine elements on the host: `struct cableway_function` of `shim/collectives/operations.h`.

use std::ffi::c_void;

use cableway_coll::{Function, FunctionElement};
use cableway_datatype::Layout;

/// `struct cableway_function`
#[repr(C)]
pub(super) struct FunctionDescription {
    op: *const c_void,
    datatype: *const c_void,
    layout: *const Layout,
    size: u64,
    offset: i64,
}

unsafe extern "C" {
    fn shim_combine(function: *const c_void, input: *const c_void, inout: *mut c_void, elements: u64);
}

impl FunctionDescription {
    /// Returns whether the call has a function. Otherwise it has an operation of the engine.
    pub(super) fn is_given(&self) -> bool {
        !self.op.is_null()
    }

    /// Returns the function.
    ///
    /// # Safety
    /// A function is given. The description does not move before the operation has finished, and its operation and
    /// datatype live as long.
    pub(super) unsafe fn function(&self) -> Function {
        // SAFETY: the caller's promise. MPI lets any thread that calls it make progress, and forbids the program's function
        // to communicate.
        unsafe { Function::new(shim_combine, std::ptr::from_ref(self).cast()) }
    }

    /// Returns the elements.
    ///
    /// # Safety
    /// The layout is null, or lives as long as the call.
    pub(super) unsafe fn element<'a>(&self) -> FunctionElement<'a> {
        // SAFETY: the caller's promise.
        match unsafe { self.layout.as_ref() } {
            Some(layout) => FunctionElement::Layout(layout),
            None => FunctionElement::Dense { size: self.size, offset: self.offset },
        }
    }
}
