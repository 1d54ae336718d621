//! Layouts with blocks at regular distances.

use cableway_datatype::{ArrayOrder, Datatype, Error, Layout, Predefined};

/// Returns the offset of each byte of a message, by the layout's blocks.
fn bytes(layout: &Layout, count: u64) -> Vec<i64> {
    layout.blocks(count).flat_map(|block| (0..block.len).map(move |byte| block.offset + byte as i64)).collect()
}

/// Returns the same by the regular distances, or `None` if there are none.
fn strided(layout: &Layout, count: u64) -> Option<Vec<i64>> {
    let blocks = layout.strided(count)?;
    let mut found = Vec::new();
    let [inner, middle, outer] = blocks.dimensions;
    for i in 0..outer.0 {
        for j in 0..middle.0 {
            for k in 0..inner.0 {
                let at = blocks.offset + i as i64 * outer.1 + j as i64 * middle.1 + k as i64 * inner.1;
                found.extend((0..blocks.block).map(|byte| at + byte as i64));
            }
        }
    }
    Some(found)
}

#[test]
fn regular_layouts_are_blocks_at_regular_distances() -> Result<(), Error> {
    let int = Predefined::Int.datatype();
    let vector = Datatype::vector(10, 3, 8, &int)?;
    let backwards = Datatype::vector(10, 3, -8, &int)?;
    let plane = Datatype::subarray(&[9, 8], &[3, 4], &[2, 1], ArrayOrder::C, &int)?;
    let cube = Datatype::subarray(&[9, 8, 7], &[3, 4, 5], &[2, 1, 1], ArrayOrder::C, &int)?;
    let shifted = Datatype::resized(&Datatype::hvector(4, 1, 100, &vector)?, -16, 4000)?;
    for datatype in [int, vector, backwards, plane, cube] {
        let layout = datatype.commit();
        for count in [1, 2, 7] {
            assert_eq!(strided(&layout, count), Some(bytes(&layout, count)), "{count} times {layout:?}");
        }
    }
    let layout = shifted.commit();
    assert_eq!(strided(&layout, 3), Some(bytes(&layout, 3)));
    Ok(())
}

#[test]
fn irregular_layouts_are_not_strided() -> Result<(), Error> {
    let int = Predefined::Int.datatype();
    let squares = Datatype::indexed_block(1, &[0, 1, 4, 9, 16], &int)?;
    let array = Datatype::subarray(&[9, 9, 9, 9], &[3, 3, 3, 3], &[0; 4], ArrayOrder::C, &int)?;
    for datatype in [squares, array] {
        assert_eq!(datatype.commit().strided(2), None);
    }
    let layout = int.commit();
    assert_eq!(layout.strided(0), None);
    assert_eq!(layout.strided(u64::MAX), None);
    Ok(())
}
