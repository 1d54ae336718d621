//! Cableway's kernels as code objects: one for each instruction set, or a generic one for several.

use std::ffi::{CStr, c_void};

use super::library::HipDriver;
use crate::code_objects::{candidates, unpack};
use crate::driver::{Failure, FailureKind, Function, Image, Kernels, Module, Stream};

/// The output of kernels/compile, which describes the format.
const COPY: &[u8] = include_bytes!("../../kernels/copy.hip.gz");
const REDUCE_BITS: &[u8] = include_bytes!("../../kernels/reduce_bits.hip.gz");
const REDUCE_INTEGERS: &[u8] = include_bytes!("../../kernels/reduce_integers.hip.gz");
const REDUCE_FLOATS: &[u8] = include_bytes!("../../kernels/reduce_floats.hip.gz");
const REDUCE_PAIRS: &[u8] = include_bytes!("../../kernels/reduce_pairs.hip.gz");
const ONE_SHOT: &[u8] = include_bytes!("../../kernels/one_shot.hip.gz");
const BLOCK_MOVES: &[u8] = include_bytes!("../../kernels/block_moves.hip.gz");
const MOVES: &[u8] = include_bytes!("../../kernels/moves.hip.gz");

impl Kernels for HipDriver {
    /// Loads the code object of the current device's instruction set, else a generic one.
    fn load_module(&self, image: Image) -> Result<Module, Failure> {
        let packed = match image {
            Image::Copy => COPY,
            // Its groups of lanes and its clock are those of the other vendor's devices.
            Image::Resident => return Err(Failure::missing("load_module")),
            Image::ReduceBits => REDUCE_BITS,
            Image::ReduceIntegers => REDUCE_INTEGERS,
            Image::ReduceFloats => REDUCE_FLOATS,
            Image::ReducePairs => REDUCE_PAIRS,
            Image::OneShot => ONE_SHOT,
            Image::Moves => MOVES,
            Image::BlockMoves => BLOCK_MOVES,
        };
        let architecture = self.architecture(self.current_ordinal()?)?;
        let unpacked = unpack(packed).ok_or(Failure::found("load_module", FailureKind::Other))?;
        let mut refused = Failure::found("load_module", FailureKind::NotSupported);
        for code in candidates(&unpacked, &architecture) {
            // The library reads 64-bit words of it.
            let aligned: Vec<u64> = code
                .chunks(8)
                .map(|bytes| {
                    let mut word = [0; 8];
                    word[..bytes.len()].copy_from_slice(bytes);
                    u64::from_ne_bytes(word)
                })
                .collect();
            let mut module = 0;
            // SAFETY: fills in the module of a code object, whose header says how long it is. The library copies it.
            match unsafe { self.hipModuleLoadData(&raw mut module, aligned.as_ptr().cast()) } {
                Ok(()) => return Ok(Module::new(module)),
                Err(failure) => refused = failure,
            }
        }
        if refused.is_found_here() {
            log::info!("Cableway has no kernels for devices of the kind {architecture}");
        }
        Err(refused)
    }

    fn unload_module(&self, module: Module) -> Result<(), Failure> {
        // SAFETY: loaded by `load_module`, and given away by its owner.
        unsafe { self.hipModuleUnload(module.raw()) }
    }

    fn function(&self, module: &Module, name: &CStr) -> Result<Function, Failure> {
        let mut function = 0;
        // SAFETY: fills in the function of a loaded module.
        unsafe { self.hipModuleGetFunction(&raw mut function, module.raw(), name.as_ptr()) }?;
        Ok(Function(function))
    }

    unsafe fn launch(
        &self,
        function: Function,
        blocks: u32,
        threads: u32,
        argument: *mut c_void,
        stream: &Stream,
    ) -> Result<(), Failure> {
        let mut arguments = [argument];
        let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        let (function, stream) = (function.0, stream.raw());
        // SAFETY: a function of a loaded module with its one argument, by the caller's promise.
        unsafe { self.hipModuleLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, none) }
    }
}
