//! Cableway's kernels as PTX, which the driver compiles for the device.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUmodule};

use super::library::CudaDriver;
use super::streams::raw;
use crate::driver::{Failure, Function, Image, KernelGraph, Kernels, MOST_ARGUMENT, Module, Stream};

/// The output of kernels/compile. A zero byte ends each text, as the driver requires.
const COPY: &str = concat!(include_str!("../../kernels/copy.ptx"), "\0");
const RESIDENT: &str = concat!(include_str!("../../kernels/resident.ptx"), "\0");
const REDUCE_BITS: &str = concat!(include_str!("../../kernels/reduce_bits.ptx"), "\0");
const REDUCE_INTEGERS: &str = concat!(include_str!("../../kernels/reduce_integers.ptx"), "\0");
const REDUCE_FLOATS: &str = concat!(include_str!("../../kernels/reduce_floats.ptx"), "\0");
const REDUCE_PAIRS: &str = concat!(include_str!("../../kernels/reduce_pairs.ptx"), "\0");
const ONE_SHOT: &str = concat!(include_str!("../../kernels/one_shot.ptx"), "\0");
const BLOCK_MOVES: &str = concat!(include_str!("../../kernels/block_moves.ptx"), "\0");
const MOVES: &str = concat!(include_str!("../../kernels/moves.ptx"), "\0");

fn raw_module(module: &Module) -> CUmodule {
    std::ptr::with_exposed_provenance_mut(module.raw())
}

impl Kernels for CudaDriver {
    fn load_module(&self, image: Image) -> Result<Module, Failure> {
        let text = match image {
            Image::Copy => COPY,
            Image::Resident => RESIDENT,
            Image::ReduceBits => REDUCE_BITS,
            Image::ReduceIntegers => REDUCE_INTEGERS,
            Image::ReduceFloats => REDUCE_FLOATS,
            Image::ReducePairs => REDUCE_PAIRS,
            Image::OneShot => ONE_SHOT,
            Image::Moves => MOVES,
            Image::BlockMoves => BLOCK_MOVES,
        };
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: fills in the module of a terminated text.
        unsafe { self.cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }?;
        Ok(Module::new(module.expose_provenance()))
    }

    fn unload_module(&self, module: Module) -> Result<(), Failure> {
        // SAFETY: loaded by `load_module`, and given away by its owner.
        unsafe { self.cuModuleUnload(raw_module(&module)) }
    }

    fn function(&self, module: &Module, name: &CStr) -> Result<Function, Failure> {
        let mut function: CUfunction = std::ptr::null_mut();
        // SAFETY: fills in the function of a loaded module.
        unsafe { self.cuModuleGetFunction(&raw mut function, raw_module(module), name.as_ptr()) }?;
        Ok(Function(function.expose_provenance()))
    }

    unsafe fn launch(
        &self,
        function: Function,
        blocks: u32,
        threads: u32,
        argument: *mut c_void,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let function: CUfunction = std::ptr::with_exposed_provenance_mut(function.0);
        let mut arguments = [argument];
        let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: a function of a loaded module with its one argument, by the caller's promise.
        unsafe { self.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, raw(stream), arguments, none) }
    }

    fn new_kernel_graph(&self, function: Function, threads: u32, stream: &Stream) -> Result<KernelGraph, Failure> {
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: fills in the new graph.
        unsafe { self.cuGraphCreate(&raw mut graph, 0) }?;
        self.with_kernel(graph, function, threads, stream).inspect_err(|_| {
            // SAFETY: made above, and nothing uses it.
            let _ = unsafe { self.cuGraphDestroy(graph) };
        })
    }

    unsafe fn launch_graph(
        &self,
        graph: &mut KernelGraph,
        blocks: u32,
        argument: *mut c_void,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let mut arguments = [argument];
        let parameters = parameters(graph.function, blocks, graph.threads, &mut arguments);
        let executable: CUgraphExec = std::ptr::with_exposed_provenance_mut(graph.executable);
        let node: CUgraphNode = std::ptr::with_exposed_provenance_mut(graph.node);
        // SAFETY: the graph lives, nobody else uses it, and its function has one argument, by the caller's promise. The driver
        // copies the argument, and launches before this one keep theirs.
        unsafe {
            self.cuGraphExecKernelNodeSetParams(executable, node, &raw const parameters)?;
            self.cuGraphLaunch(executable, raw(stream))
        }
    }

    fn destroy_kernel_graph(&self, graph: KernelGraph) -> Result<(), Failure> {
        // SAFETY: both were made by `new_kernel_graph`, and given away by their owner.
        unsafe {
            let executable = self.cuGraphExecDestroy(std::ptr::with_exposed_provenance_mut(graph.executable));
            executable.and(self.cuGraphDestroy(std::ptr::with_exposed_provenance_mut(graph.graph)))
        }
    }
}

impl CudaDriver {
    /// Adds a kernel to an empty graph, and makes of it what can be launched.
    fn with_kernel(
        &self,
        graph: CUgraph,
        function: Function,
        threads: u32,
        stream: &Stream,
    ) -> Result<KernelGraph, Failure> {
        let mut node: CUgraphNode = std::ptr::null_mut();
        let mut executable: CUgraphExec = std::ptr::null_mut();
        let mut nothing = Argument([0; MOST_ARGUMENT]);
        let mut arguments = [(&raw mut nothing).cast::<c_void>()];
        let parameters = parameters(function, 1, threads, &mut arguments);
        // SAFETY: fills in the node, whose argument is as long as any, and what can be launched. It is uploaded, so that the
        // first launch need not do it.
        unsafe {
            self.cuGraphAddKernelNode(&raw mut node, graph, std::ptr::null(), 0, &raw const parameters)?;
            self.cuGraphInstantiateWithFlags(&raw mut executable, graph, 0)?;
            self.cuGraphUpload(executable, raw(stream)).inspect_err(|_| {
                let _ = self.cuGraphExecDestroy(executable);
            })?;
        }
        let (executable, node) = (executable.expose_provenance(), node.expose_provenance());
        Ok(KernelGraph { executable, graph: graph.expose_provenance(), node, function, threads })
    }
}

/// Room for any kernel's argument.
#[repr(C, align(16))]
struct Argument([u8; MOST_ARGUMENT]);

/// Describes a launch of a kernel with one argument.
fn parameters(
    function: Function,
    blocks: u32,
    threads: u32,
    arguments: &mut [*mut c_void; 1],
) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: std::ptr::with_exposed_provenance_mut(function.0),
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: arguments.as_mut_ptr(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}
