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

/// The largest argument of a kernel, in bytes.
pub(crate) const MOST_ARGUMENT: usize = 4096;

/// A graph of one kernel, which is launched again and again with another argument. It has one owner.
#[derive(Debug)]
pub(crate) struct KernelGraph {
    /// The vendor library's handles: what can be launched, what it was made from, and the kernel there.
    pub(crate) executable: usize,
    pub(crate) graph: usize,
    pub(crate) node: usize,
    pub(crate) function: Function,
    pub(crate) threads: u32,
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

    /// Makes a graph of a kernel with one argument of at most [`MOST_ARGUMENT`] bytes, to launch in a stream. The context is
    /// current. This may allocate memory on the device.
    fn new_kernel_graph(&self, _function: Function, _threads: u32, _stream: &Stream) -> Result<KernelGraph, Failure> {
        Err(Failure::missing("new_kernel_graph"))
    }

    /// Launches the kernel of a graph as [`launch`](Self::launch) does. Launches of one graph follow each other, also in several
    /// streams. The context is current, and no other thread uses the graph.
    ///
    /// # Safety
    /// As [`launch`](Self::launch).
    unsafe fn launch_graph(
        &self,
        _graph: &mut KernelGraph,
        _blocks: u32,
        _argument: *mut c_void,
        _stream: &Stream,
    ) -> Result<(), Failure> {
        Err(Failure::missing("launch_graph"))
    }

    /// The context is current, and the graph does not run.
    fn destroy_kernel_graph(&self, _graph: KernelGraph) -> Result<(), Failure> {
        Err(Failure::missing("destroy_kernel_graph"))
    }
}
