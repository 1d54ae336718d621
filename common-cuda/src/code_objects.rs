//! Kernels as code objects, one for each instruction set, or a generic one for several. kernels/compile describes the
//! format of the packed ones.

/// The header of a gzip file without a name (RFC 1952), before the compressed data.
const GZIP_HEADER: usize = 10;

/// Generic instruction sets, and the ones that they stand for (LLVM's user guide for AMDGPU, "Generic processors").
const GENERIC: [(&str, &[&str]); 4] = [
    ("gfx10-1-generic", &["gfx1010", "gfx1011", "gfx1012", "gfx1013"]),
    ("gfx10-3-generic", &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"]),
    ("gfx11-generic", &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152"]),
    ("gfx12-generic", &["gfx1200", "gfx1201"]),
];

/// Unpacks an output of kernels/compile.
pub(crate) fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    miniz_oxide::inflate::decompress_to_vec(packed.get(GZIP_HEADER..)?).ok()
}

/// Returns the code objects for an instruction set, its own before a generic one.
pub(crate) fn candidates<'c>(unpacked: &'c [u8], architecture: &str) -> Vec<&'c [u8]> {
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

    const COPY: &[u8] = include_bytes!("../kernels/copy.hip.gz");
    const REDUCE_PAIRS: &[u8] = include_bytes!("../kernels/reduce_pairs.hip.gz");

    /// `e_machine` of an ELF file, and the processor in its `e_flags`.
    fn machine(code: &[u8]) -> (u16, u8) {
        assert_eq!(&code[..4], b"\x7fELF");
        (u16::from_le_bytes([code[18], code[19]]), code[48])
    }

    #[test]
    fn every_image_has_code_for_every_target() {
        for packed in [COPY, REDUCE_PAIRS] {
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
