//! Code objects: which device they are for, and the kernels in them.

use crate::abi::{In, List};
use crate::error::{Error, Outcome};
use crate::release;

/// The size of an ELF header of 64 bits.
const HEADER: usize = 64;
/// `EM_AMDGPU`
const MACHINE: u16 = 224;

/// `EF_AMDGPU_MACH_*`: the processor in the lowest byte of the flags.
const PROCESSORS: [(&str, u8); 5] =
    [("gfx908", 0x30), ("gfx90a", 0x3f), ("gfx942", 0x4c), ("gfx1030", 0x36), ("gfx1100", 0x41)];

/// `hipErrorNoBinaryForGpu`
const NO_BINARY: Error = Error(209);

/// Returns the names of the kernels of a code object for these devices.
pub(crate) fn entries(image: &In<u8>) -> Outcome<Vec<String>> {
    let bytes = |len: usize| List::of(image).get(len);
    let header = bytes(HEADER)?;
    if !header.starts_with(b"\x7fELF\x02\x01") || u16::from_le_bytes([header[18], header[19]]) != MACHINE {
        return Err(Error::INVALID_PTX);
    }
    let wanted = PROCESSORS.iter().find(|row| row.0 == release::architecture()).map(|row| row.1);
    if wanted != Some(header[48]) {
        return Err(NO_BINARY);
    }
    // The table of sections is at the end.
    let table = u64::from_le_bytes(header[40..48].try_into().unwrap_or_default()) as usize;
    let [size, count] = [58, 60].map(|at| usize::from(u16::from_le_bytes([header[at], header[at + 1]])));
    let whole = bytes(table + size * count)?;
    // Each kernel has a descriptor of its name.
    let names = whole.split(|byte| *byte == 0).filter_map(|name| name.strip_suffix(b".kd"));
    let mut names: Vec<String> = names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect();
    names.sort();
    names.dedup();
    Ok(names)
}
