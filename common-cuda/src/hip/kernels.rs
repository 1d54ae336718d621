//! Cableway's kernels as code objects: one for each instruction set, or a generic one for several.

use std::ffi::{CStr, c_void};

use super::library::HipDriver;
use crate::driver::{Failure, FailureKind, Function, Image, Kernels, Module, Stream};

/// The output of kernels/compile, which describes the format.
const COPY: &[u8] = include_bytes!("../../kernels/copy.hip.gz");
const REDUCE_BITS: &[u8] = include_bytes!("../../kernels/reduce_bits.hip.gz");
const REDUCE_INTEGERS: &[u8] = include_bytes!("../../kernels/reduce_integers.hip.gz");
const REDUCE_FLOATS: &[u8] = include_bytes!("../../kernels/reduce_floats.hip.gz");
const REDUCE_PAIRS: &[u8] = include_bytes!("../../kernels/reduce_pairs.hip.gz");

/// The header of a gzip file without a name (RFC 1952), before the compressed data.
const GZIP_HEADER: usize = 10;

/// Generic instruction sets, and the ones that they stand for (LLVM's user guide for AMDGPU, "Generic processors").
const GENERIC: [(&str, &[&str]); 4] = [
    ("gfx10-1-generic", &["gfx1010", "gfx1011", "gfx1012", "gfx1013"]),
    ("gfx10-3-generic", &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"]),
    ("gfx11-generic", &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152"]),
    ("gfx12-generic", &["gfx1200", "gfx1201"]),
];

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

fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    miniz_oxide::inflate::decompress_to_vec(packed.get(GZIP_HEADER..)?).ok()
}

/// Returns the code objects for an instruction set, its own before a generic one.
fn candidates<'c>(unpacked: &'c [u8], architecture: &str) -> Vec<&'c [u8]> {
    let generic = GENERIC.iter().find(|(_, kinds)| kinds.contains(&architecture)).map(|(generic, _)| *generic);
    let wanted = [Some(architecture), generic];
    wanted.into_iter().flatten().filter_map(|target| find(unpacked, target)).collect()
}

/// Finds the code object of a target.
fn find<'c>(unpacked: &'c [u8], target: &str) -> Option<&'c [u8]> {
    let end = unpacked.windows(2).position(|pair| pair == b"\n\n")?;
    let (list, mut at) = (std::str::from_utf8(&unpacked[..end]).ok()?, end + 2);
    for line in list.lines() {
        let (name, len) = line.split_once(' ')?;
        let len: usize = len.parse().ok()?;
        if name == target {
            return unpacked.get(at..at.checked_add(len)?);
        }
        at = at.checked_add(len)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `e_machine` of an ELF file, and the processor in its `e_flags`.
    fn machine(code: &[u8]) -> (u16, u8) {
        assert_eq!(&code[..4], b"\x7fELF");
        (u16::from_le_bytes([code[18], code[19]]), code[48])
    }

    #[test]
    fn every_image_has_code_for_every_target() {
        for packed in [COPY, REDUCE_BITS, REDUCE_INTEGERS, REDUCE_FLOATS, REDUCE_PAIRS] {
            let unpacked = unpack(packed).unwrap();
            // EM_AMDGPU is 224; the processors are those of LLVM's user guide for AMDGPU.
            for (target, processor) in [("gfx908", 0x30), ("gfx90a", 0x3f), ("gfx942", 0x4c), ("gfx1100", 0x41)] {
                let code = find(&unpacked, target).unwrap();
                assert_eq!(machine(code), (224, processor), "{target}");
            }
            for (generic, kinds) in GENERIC {
                let code = find(&unpacked, generic).unwrap();
                assert_eq!(machine(code).0, 224);
                assert_eq!(candidates(&unpacked, kinds[0]).last(), Some(&code));
            }
            assert_eq!(candidates(&unpacked, "gfx1100").len(), 2, "its own and a generic one");
            assert!(candidates(&unpacked, "gfx803").is_empty());
        }
    }
}
