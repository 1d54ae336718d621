//! Cableway's kernels as PTX, which the driver compiles for the device.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule};

use super::library::CudaDriver;
use super::streams::raw;
use crate::driver::{Failure, Function, Image, Kernels, Module, Stream};

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
}
