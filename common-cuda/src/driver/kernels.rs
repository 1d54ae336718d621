//! Cableway's kernels.

use std::ffi::{CStr, c_void};

use super::{Failure, Function, Module, Stream};

/// Code that each vendor has in a form for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// `kernels/copy.cu`.
    Copy,
    /// `kernels/resident.cu`.
    Resident,
    /// `kernels/reduce_bits.cu`.
    ReduceBits,
    /// `kernels/reduce_integers.cu`.
    ReduceIntegers,
    /// `kernels/reduce_floats.cu`.
    ReduceFloats,
    /// `kernels/reduce_pairs.cu`.
    ReducePairs,
    /// `kernels/one_shot.cu`.
    OneShot,
    /// `kernels/moves.cu`.
    Moves,
    /// `kernels/block_moves.cu`.
    BlockMoves,
}

/// Loading and launching kernels. A vendor without kernels loads no module.
pub(crate) trait Kernels {
    /// Loads code into the current context. This may wait for kernels that fill the device.
    fn load_module(&self, _image: Image) -> Result<Module, Failure> {
        Err(Failure::missing("load_module"))
    }

    /// The context is current, and no kernel of the module runs.
    fn unload_module(&self, _module: Module) -> Result<(), Failure> {
        Err(Failure::missing("unload_module"))
    }

    fn function(&self, _module: &Module, _name: &CStr) -> Result<Function, Failure> {
        Err(Failure::missing("function"))
    }

    /// Launches a kernel with one argument, which the call copies. The context is current.
    ///
    /// # Safety
    /// The argument is what the kernel declares, and memory that it names stays valid until the kernel ends.
    unsafe fn launch(
        &self,
        _function: Function,
        _blocks: u32,
        _threads: u32,
        _argument: *mut c_void,
        _stream: &Stream,
    ) -> Result<(), Failure> {
        Err(Failure::missing("launch"))
    }
}
