//! A kernel that is the node of a graph.

use std::ffi::{c_uint, c_void};

use crate::error::{Error, Outcome};
use crate::kernel_memory::THREADS;
use crate::kernels::{self, Arguments, Code, FUNCTIONS, Kernel};
use crate::{signalled, stream};

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NodeParameters {
    function: usize,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    arguments: *const *const c_void,
    extra: *const *const c_void,
    kernel: usize,
    context: usize,
}

/// A kernel with its argument.
pub(crate) struct NodeKernel {
    argument: Argument,
    context: u64,
}

enum Argument {
    Job { arguments: Arguments, blocks: u64 },
    Signalled(signalled::Argument),
}

impl NodeKernel {
    /// Reads the description of a node. Only kernels of jobs and the one that copies in streams can be nodes here.
    pub(crate) fn read(parameters: NodeParameters) -> Outcome<NodeKernel> {
        let NodeParameters { function, grid, block, shared, arguments, extra, kernel, context } = parameters;
        let function = FUNCTIONS.get()?.lock().get(function).ok_or(Error::INVALID_HANDLE)?;
        let Code::Ours(code) = &function.code else { return Err(Error::NOT_SUPPORTED) };
        let usual = (shared, kernel, context) == (0, 0, 0) && extra.is_null() && !arguments.is_null();
        if !usual || grid[0] == 0 || grid[1..] != [1, 1] || block != [THREADS, 1, 1] {
            return Err(Error::INVALID_VALUE);
        }
        // SAFETY: the caller of the driver passes an address for each of the kernel's parameters, and each has one.
        let argument = unsafe {
            let argument = arguments.read();
            match code {
                Kernel::Signalled => Argument::Signalled(argument.cast::<signalled::Argument>().read_unaligned()),
                code => Argument::Job {
                    arguments: Arguments::read(*code, argument).ok_or(Error::NOT_SUPPORTED)?,
                    blocks: grid[0].into(),
                },
            }
        };
        Ok(NodeKernel { argument, context: function.context })
    }

    /// Launches the kernel in a stream.
    pub(crate) fn launch(&self, handle: usize) -> Outcome {
        let stream = stream::get(handle)?;
        if stream.context.id != self.context {
            return Err(Error::INVALID_HANDLE);
        }
        match &self.argument {
            Argument::Job { arguments, blocks } => kernels::submit(arguments.clone(), *blocks, &stream),
            Argument::Signalled(argument) => signalled::launch(*argument, handle),
        }
    }
}
