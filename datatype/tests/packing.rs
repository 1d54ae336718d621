//! The convertor against the naive packer: any type, any fragments, any order of fragments.

mod reference;

use std::collections::HashSet;

use cableway_common_cuda::{Devices, Location};
use cableway_datatype::{Convertor, Error, Piece};
use proptest::prelude::*;
use reference::spec;

/// A buffer with every byte of a message, and the offset of the message's address 0 in it.
struct Buffer {
    bytes: Vec<u8>,
    low: i64,
}

impl Buffer {
    fn new(offsets: &[i64], fill: impl Fn(usize) -> u8) -> Buffer {
        let low = offsets.iter().copied().min().unwrap_or(0);
        let high = offsets.iter().copied().max().map_or(low, |high| high + 1);
        Buffer { bytes: (0..(high - low) as usize).map(fill).collect(), low }
    }

    fn base(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr().wrapping_offset(-self.low as isize)
    }

    fn at(&self, offset: i64) -> u8 {
        self.bytes[(offset - self.low) as usize]
    }
}

fn pattern(i: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// Returns the ranges between cuts, in an order that depends on the cuts.
fn fragments(len: usize, cuts: &[prop::sample::Index]) -> Vec<(usize, usize)> {
    let mut points: Vec<usize> = cuts.iter().map(|cut| cut.index(len + 1)).collect();
    points.extend([0, len]);
    points.sort_unstable();
    let mut ranges: Vec<(usize, usize)> = points.windows(2).map(|pair| (pair[0], pair[1])).collect();
    for (i, cut) in cuts.iter().enumerate() {
        let other = cut.index(ranges.len());
        ranges.swap(i % other.max(1), other);
    }
    ranges
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn sizes_and_bounds_match_the_standard(spec in spec()) {
        let map = spec.map();
        let datatype = spec.build()?;
        let bytes = map.bytes(1);
        prop_assert_eq!(datatype.size(), bytes.len() as u64);
        prop_assert_eq!(datatype.lb(), map.lb());
        prop_assert_eq!(datatype.ub(), map.ub());
        prop_assert_eq!(datatype.extent(), map.extent());
        let low = bytes.iter().copied().min().unwrap_or(0);
        let high = bytes.iter().copied().max().map_or(low, |high| high + 1);
        prop_assert_eq!(datatype.true_lb(), low);
        prop_assert_eq!(datatype.true_extent(), high - low);
    }

    #[test]
    fn packs_any_fragments_in_any_order(
        spec in spec(),
        count in 0..4_i64,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let map = spec.map();
        let layout = spec.build()?.commit();
        let offsets = map.bytes(count);
        let mut buffer = Buffer::new(&offsets, pattern);
        let base = buffer.base();
        // SAFETY: the buffer holds every byte of the message and lives, unwritten, beyond the convertor.
        let mut convertor =
            unsafe { Convertor::for_send(&layout, base, count as u64, Location::HOST, &Devices::none()) };
        prop_assert_eq!(convertor.packed_size(), offsets.len() as u64);
        let mut packed = vec![0; offsets.len()];
        for (from, to) in fragments(offsets.len(), &cuts) {
            convertor.set_position(from as u64);
            prop_assert_eq!(convertor.pack_slice(&mut packed[from..to])?, to - from);
            prop_assert_eq!(convertor.position(), to as u64);
        }
        let expected: Vec<u8> = offsets.iter().map(|&offset| buffer.at(offset)).collect();
        prop_assert_eq!(packed, expected);
    }

    #[test]
    fn unpacks_any_fragments_in_any_order_and_nothing_else(
        spec in spec(),
        count in 0..4_i64,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let map = spec.map();
        let offsets = map.bytes(count);
        let distinct: HashSet<i64> = offsets.iter().copied().collect();
        prop_assume!(distinct.len() == offsets.len());
        let layout = spec.build()?.commit();
        let mut buffer = Buffer::new(&offsets, |_| 0xEE);
        let base = buffer.base();
        // SAFETY: the buffer holds every byte of the message, and only the convertor touches it while it lives.
        let mut convertor =
            unsafe { Convertor::for_receive(&layout, base, count as u64, Location::HOST, &Devices::none()) };
        let packed: Vec<u8> = (0..offsets.len()).map(pattern).collect();
        for (from, to) in fragments(offsets.len(), &cuts) {
            convertor.set_position(from as u64);
            prop_assert_eq!(convertor.unpack_slice(&packed[from..to])?, to - from);
        }
        let mut expected = Buffer::new(&offsets, |_| 0xEE);
        for (i, offset) in offsets.iter().enumerate() {
            expected.bytes[(offset - expected.low) as usize] = packed[i];
        }
        prop_assert_eq!(buffer.bytes, expected.bytes);
    }

    #[test]
    fn pieces_and_blocks_match_the_type_map(
        spec in spec(),
        count in 0..4_i64,
        entries in 1..9_usize,
        bytes in 1..400_u64,
    ) {
        let map = spec.map();
        let layout = spec.build()?.commit();
        let offsets = map.bytes(count);
        let mut runs: Vec<(i64, u64)> = Vec::new();
        for &offset in &offsets {
            match runs.last_mut() {
                Some(run) if run.0 + run.1 as i64 == offset => run.1 += 1,
                _ => runs.push((offset, 1)),
            }
        }
        let blocks: Vec<(i64, u64)> = layout.blocks(count as u64).map(|block| (block.offset, block.len)).collect();
        prop_assert_eq!(&blocks, &runs);
        let one_run = (runs.len() == 1).then(|| runs[0]);
        prop_assert_eq!(layout.contiguous_span(count as u64), one_run);
        prop_assert_eq!(layout.is_contiguous(count as u64), runs.len() <= 1);

        let base = std::ptr::without_provenance_mut::<u8>(1 << 30);
        // SAFETY: pieces are listed, never touched.
        let mut convertor =
            unsafe { Convertor::for_send(&layout, base, count as u64, Location::HOST, &Devices::none()) };
        prop_assert_eq!(convertor.contiguous(), one_run.map(|run| base.wrapping_offset(run.0 as isize)));
        let mut listed = Vec::new();
        while convertor.remaining() != 0 {
            let mut pieces: Vec<Piece> = Vec::new();
            let taken = convertor.iovec(entries, bytes, &mut pieces);
            prop_assert!(taken != 0 && taken <= bytes && pieces.len() <= entries);
            prop_assert_eq!(pieces.iter().map(|piece| piece.len as u64).sum::<u64>(), taken);
            for piece in pieces {
                let offset = piece.address.addr() as i64 - (1 << 30);
                listed.extend((0..piece.len as i64).map(|byte| offset + byte));
            }
        }
        prop_assert_eq!(listed, offsets);
    }
}

#[test]
fn large_arrays_of_structures_are_packed() -> Result<(), Error> {
    use cableway_datatype::Predefined;
    use reference::Spec;
    let field = |kind: Predefined, size| Spec::Basic(kind, size, size);
    let structure = Spec::Structure(vec![
        (1, 0, field(Predefined::Int, 4)),
        (1, 12, field(Predefined::Char, 1)),
        (7, 16, field(Predefined::Short, 2)),
        (30, 40, field(Predefined::Int, 4)),
    ]);
    for (spec, count) in [(Spec::Contiguous(700, Box::new(structure.clone())), 2), (structure, 1500)] {
        let offsets = spec.map().bytes(count);
        let layout = spec.build()?.commit();
        let mut buffer = Buffer::new(&offsets, pattern);
        let base = buffer.base();
        // SAFETY: the buffer holds the message, and only the convertor touches it while it lives.
        let mut convertor =
            unsafe { Convertor::for_receive(&layout, base, count as u64, Location::HOST, &Devices::none()) };
        let mut packed = vec![0; offsets.len()];
        let middle = packed.len() / 2 + 1;
        convertor.pack_slice(&mut packed[..middle])?;
        convertor.pack_slice(&mut packed[middle..])?;
        assert_eq!(packed, offsets.iter().map(|&offset| buffer.at(offset)).collect::<Vec<u8>>());

        let mut copy = Buffer::new(&offsets, |_| 0xEE);
        let base = copy.base();
        // SAFETY: as above.
        let mut convertor =
            unsafe { Convertor::for_receive(&layout, base, count as u64, Location::HOST, &Devices::none()) };
        convertor.unpack_slice(&packed)?;
        let mut expected = Buffer::new(&offsets, |_| 0xEE);
        for (&offset, &byte) in offsets.iter().zip(&packed) {
            expected.bytes[(offset - expected.low) as usize] = byte;
        }
        assert_eq!(copy.bytes, expected.bytes);
    }
    Ok(())
}

#[test]
fn packing_keeps_the_declared_order() -> Result<(), Error> {
    use cableway_datatype::{Datatype, Predefined};
    let byte = Predefined::Byte.datatype();
    let backwards = Datatype::indexed_block(1, &[3, 2, 1, 0], &byte)?.commit();
    let buffer = *b"abcd";
    // SAFETY: the buffer lives, unwritten, as long as the convertor.
    let mut convertor =
        unsafe { Convertor::for_send(&backwards, buffer.as_ptr(), 1, Location::HOST, &Devices::none()) };
    let mut packed = [0; 4];
    convertor.pack_slice(&mut packed)?;
    assert_eq!(&packed, b"dcba");
    Ok(())
}

#[test]
fn a_send_buffer_is_never_written_nor_a_receive_buffer_overrun() {
    let layout = cableway_datatype::Predefined::Int.datatype().commit();
    let mut buffer = [0_u8; 8];
    // SAFETY: the buffer lives as long as both convertors, of which only one may write.
    let mut send = unsafe { Convertor::for_send(&layout, buffer.as_ptr(), 2, Location::HOST, &Devices::none()) };
    assert!(matches!(send.unpack_slice(&[1; 8]), Err(Error::ReadOnly)));
    // SAFETY: as above; the other convertor is not used any more.
    let mut receive =
        unsafe { Convertor::for_receive(&layout, buffer.as_mut_ptr(), 2, Location::HOST, &Devices::none()) };
    assert!(matches!(receive.unpack_slice(&[1; 9]), Err(Error::Overrun { given: 9, remaining: 8 })));
    assert_eq!(receive.position(), 0);
    assert_eq!(buffer, [0; 8]);
}
