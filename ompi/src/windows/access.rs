//! Decodes the shim's descriptions of operations on windows.

use std::ffi::c_int;

use cableway_pml::{Access, Buffer, Change, Combine};

use crate::boundary::BufferDescription;
use crate::buffer::buffer_of;

/// `struct cableway_window_access`
#[repr(C)]
pub(super) struct AccessDescription {
    change: c_int,
    combine: c_int,
    target: u32,
    operation: u32,
    element: u32,
    displacement: i64,
    reach: BufferDescription,
    origin: BufferDescription,
    expected: BufferDescription,
    result: BufferDescription,
}
const _: () = assert!(size_of::<AccessDescription>() == 32 + 4 * size_of::<BufferDescription>());

/// `enum cableway_change`
mod change {
    use std::ffi::c_int;

    pub(super) const PUT: c_int = 0;
    pub(super) const GET: c_int = 1;
    pub(super) const ACCUMULATE: c_int = 2;
    pub(super) const GET_ACCUMULATE: c_int = 3;
    pub(super) const COMPARE_SWAP: c_int = 4;
}

impl AccessDescription {
    /// Returns the operation.
    ///
    /// # Safety
    /// The layouts are those of live datatypes, as long as the result is used.
    pub(super) unsafe fn access(&self) -> Access<'_> {
        // SAFETY: the caller's promise.
        let buffer = |description: &BufferDescription| -> Buffer<'_> { unsafe { buffer_of(description) } };
        let (data, result) = (buffer(&self.origin), buffer(&self.result));
        // `enum cableway_combine`
        let combine = match self.combine {
            0 => Combine::Replace,
            1 => Combine::Keep,
            _ => Combine::Reduce { operation: self.operation, element: self.element },
        };
        let change = match self.change {
            change::PUT => Change::Put(data),
            change::GET => Change::Get(result),
            change::ACCUMULATE => Change::Accumulate(data, combine),
            change::GET_ACCUMULATE => Change::GetAccumulate { data, combine, result },
            change::COMPARE_SWAP => Change::CompareSwap { expected: buffer(&self.expected), new: data, result },
            unknown => unreachable!("an operation of kind {unknown} on a window"),
        };
        Access { target: self.target, displacement: self.displacement, reach: buffer(&self.reach), change }
    }
}
