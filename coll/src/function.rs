//! Reductions by functions of the program: what a rank passes.

use std::ffi::c_void;

use cableway_datatype::Layout;

/// A function of the program that combines elements in host memory, such as one of `MPI_Op_create`. It must be associative,
/// and need not be commutative.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    apply: Apply,
    context: *const c_void,
}

/// Makes each of so many elements at `inout` the combination of that at `input` and itself, in this order. The addresses
/// count as those of a buffer: a layout's offsets begin there.
pub type Apply = unsafe extern "C" fn(context: *const c_void, input: *const c_void, inout: *mut c_void, elements: u64);

// SAFETY: `new` promises that any thread may call it.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Describes a function, which gets `context` in each call.
    ///
    /// # Safety
    /// Until every operation with this function has finished, any thread may call it with this context and with elements of
    /// the type of that operation. It accesses these elements only, does not unwind, and calls no collective operation.
    pub unsafe fn new(apply: Apply, context: *const c_void) -> Function {
        Function { apply, context }
    }

    /// Combines elements.
    ///
    /// # Safety
    /// Both addresses are those of so many elements in host memory, which do not overlap, and which nobody else accesses.
    pub(crate) unsafe fn apply(&self, input: *const u8, inout: *mut u8, elements: u64) {
        // SAFETY: the caller's promise, and that of `new`.
        unsafe { (self.apply)(self.context, input.cast(), inout.cast(), elements) }
    }
}

/// An element that a function combines.
#[derive(Clone, Copy, Debug)]
pub enum FunctionElement<'a> {
    /// Elements without gaps between them.
    Dense {
        /// The bytes of one.
        size: u64,
        /// Where the first one begins, from the address of the operand on.
        offset: i64,
    },
    /// Elements of this layout.
    Layout(&'a Layout),
}

/// The operands of a reduction by a function in one process, on the host or on a device.
#[derive(Clone, Copy, Debug)]
pub struct FunctionOperands<'a> {
    /// The function.
    pub function: Function,
    /// The elements. All ranks must pass elements of the same type.
    pub element: FunctionElement<'a>,
    /// The number of elements. Of a reduce-scatter, that of the input.
    pub count: u64,
    /// The input, or `None` for `MPI_IN_PLACE`: it is at `output`.
    pub input: Option<*const u8>,
    /// The output. It is ignored where the operation gives this process none.
    pub output: *mut u8,
}

/// What is done with the operands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reduced {
    /// `MPI_Allreduce`.
    Everywhere,
    /// `MPI_Reduce`. Only the root has an output, and only the root may be in place.
    AtRoot(u32),
    /// `MPI_Reduce_scatter` and `MPI_Reduce_scatter_block`: the number of elements that each rank gets. In place, the output
    /// is written at the beginning of the input.
    Scattered(Vec<u64>),
    /// `MPI_Scan`.
    Scan,
    /// `MPI_Exscan`. Rank 0 has no output.
    ExclusiveScan,
    /// `MPI_Reduce_local`, which is no collective operation: the input is combined with the output, to the output.
    Locally,
}
