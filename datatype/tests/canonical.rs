//! Layouts of equal bytes are equal, whatever constructors made the types.

mod reference;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use cableway_datatype::{ArrayOrder, Datatype, Dimension, Error, Layout, Predefined, Shape};
use proptest::prelude::*;
use reference::{Map, spec};

/// Builds a type of the same bytes in the same order with the same bounds, block by block, divided at `cuts`.
fn rebuilt(map: &Map, bytes: &[i64], cuts: &[prop::sample::Index]) -> Result<Layout, Error> {
    let cuts: HashSet<usize> = cuts.iter().map(|cut| cut.index(bytes.len().max(1))).collect();
    let (mut lengths, mut displacements): (Vec<i64>, Vec<i64>) = (Vec::new(), Vec::new());
    for (i, &byte) in bytes.iter().enumerate() {
        match lengths.last_mut() {
            Some(length) if bytes[i - 1] + 1 == byte && !cuts.contains(&i) => *length += 1,
            _ => {
                lengths.push(1);
                displacements.push(byte);
            }
        }
    }
    let blocks = Datatype::hindexed(&lengths, &displacements, &Predefined::Byte.datatype())?;
    Ok(Datatype::resized(&blocks, map.lb(), map.extent())?.commit())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn equal_bytes_are_equal_layouts(
        spec in spec(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let map = spec.map();
        let bytes = map.bytes(1);
        prop_assume!(bytes.len() <= 4096);
        let layout = spec.build()?.commit();
        let rebuilt = rebuilt(&map, &bytes, &cuts)?;
        prop_assert_eq!(&layout, &rebuilt);
        let hasher = RandomState::new();
        prop_assert_eq!(hasher.hash_one(&layout), hasher.hash_one(&rebuilt));
    }

    #[test]
    fn other_bytes_are_other_layouts(spec in spec(), change in any::<prop::sample::Index>()) {
        let map = spec.map();
        let mut bytes = map.bytes(1);
        prop_assume!(!bytes.is_empty() && bytes.len() <= 4096);
        let layout = spec.build()?.commit();
        let changed = change.index(bytes.len());
        bytes[changed] += 1000;
        prop_assert_ne!(&layout, &rebuilt(&map, &bytes, &[])?);
        bytes[changed] -= 1000;
        bytes.pop();
        prop_assert_ne!(&layout, &rebuilt(&map, &bytes, &[])?);
    }
}

fn int() -> Datatype {
    Predefined::Int.datatype()
}

#[test]
fn constructors_of_one_matrix_block_agree() -> Result<(), Error> {
    // 6 rows of 10 ints out of a matrix of 20 by 30.
    let block = Datatype::subarray(&[20, 30], &[6, 10], &[0, 0], ArrayOrder::C, &int())?;
    let resized = |datatype: &Datatype| Datatype::resized(datatype, 0, 2400);
    let rows = Datatype::contiguous(10, &int())?;
    let row = Datatype::resized(&rows, 0, 120)?;
    let fortran = Datatype::subarray(&[30, 20], &[10, 6], &[0, 0], ArrayOrder::Fortran, &int())?;
    let displacements: Vec<i64> = (0..6).map(|row| row * 120).collect();
    let rebuilt = [
        resized(&Datatype::vector(6, 10, 30, &int())?)?,
        resized(&Datatype::hvector(6, 1, 120, &rows)?)?,
        resized(&Datatype::contiguous(6, &row)?)?,
        resized(&Datatype::hindexed_block(10, &displacements, &int())?)?,
        resized(&Datatype::hindexed(&[40; 6], &displacements, &Predefined::Byte.datatype())?)?,
        resized(&Datatype::structure(&[10; 6], &displacements, &vec![int(); 6])?)?,
        resized(&Datatype::vector(6, 10, 30, &Predefined::Float.datatype())?.dup())?,
        fortran,
    ];
    for other in rebuilt {
        assert_eq!(block.commit(), other.commit());
    }
    let strided = Shape::Strided { offset: 0, block: 40, dimensions: vec![Dimension { count: 6, stride: 120 }] };
    assert_eq!(block.commit().shape(), strided);
    Ok(())
}

#[test]
fn a_million_blocks_have_one_layout() -> Result<(), Error> {
    const MANY: i64 = 1 << 20;
    let single = Datatype::vector(MANY, 1, 2, &int())?;
    let padded = Datatype::resized(&int(), 0, 8)?;
    let thousand = Datatype::vector(1 << 10, 1, 2, &int())?;
    let displacements: Vec<i64> = (0..MANY).map(|i| 2 * i).collect();
    let rebuilt = [
        Datatype::contiguous(MANY, &padded)?,
        Datatype::hvector(MANY >> 10, 1, 1 << 13, &thousand)?,
        Datatype::contiguous(MANY >> 10, &Datatype::contiguous(1 << 10, &padded)?)?,
        Datatype::indexed_block(1, &displacements, &int())?,
        Datatype::structure(&[1 << 19, 1, (1 << 19) - 1], &[0, 1 << 22, (1 << 22) + 8], &vec![padded.clone(); 3])?,
    ];
    for other in rebuilt {
        let other = Datatype::resized(&other, 0, single.extent())?;
        assert_eq!(Datatype::resized(&single, 0, single.extent())?.commit(), other.commit());
    }
    assert_eq!(single.commit().block_count(), MANY as u64);
    Ok(())
}

#[test]
fn data_without_gaps_is_one_block() -> Result<(), Error> {
    let layouts = [
        Datatype::contiguous(24, &int())?,
        Datatype::vector(4, 6, 6, &int())?,
        Datatype::indexed(&[10, 0, 14], &[0, 99, 10], &int())?,
        Datatype::structure(&[2, 11], &[0, 8], &[int(), Predefined::Double.datatype()])?,
        Datatype::subarray(&[4, 6], &[4, 6], &[0, 0], ArrayOrder::Fortran, &int())?,
    ];
    for datatype in layouts {
        let layout = datatype.commit();
        assert_eq!(layout.contiguous_span(1), Some((0, 96)));
        assert_eq!(layout.contiguous_span(1000), Some((0, 96_000)));
        assert_eq!(layout.block_count(), 1);
        assert_eq!(layout, Datatype::contiguous(96, &Predefined::Byte.datatype())?.commit());
    }
    Ok(())
}

#[test]
fn regular_shapes_have_up_to_three_dimensions() -> Result<(), Error> {
    let cube = Datatype::subarray(&[9, 9, 9], &[2, 3, 4], &[1, 1, 1], ArrayOrder::C, &int())?;
    let dimensions = vec![Dimension { count: 3, stride: 36 }, Dimension { count: 2, stride: 324 }];
    assert_eq!(cube.commit().shape(), Shape::Strided { offset: 4 * (81 + 9 + 1), block: 16, dimensions });
    let four = Datatype::subarray(&[9; 5], &[2, 3, 4, 5, 6], &[0; 5], ArrayOrder::C, &int())?;
    assert_eq!(four.commit().shape(), Shape::Irregular);
    assert_eq!(Datatype::contiguous(0, &int())?.commit().shape(), Shape::Empty);
    let triangle: Vec<i64> = (0..7).map(|i| i * i).collect();
    assert_eq!(Datatype::indexed_block(1, &triangle, &int())?.commit().shape(), Shape::Irregular);
    Ok(())
}
