//! Layouts of data of a given length.

use cableway_datatype::{Datatype, Layout, Predefined};

/// How data of a multiple of 8 bytes lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// One run.
    Run,
    /// Rows of 8 bytes, of which each takes 12.
    Rows,
    /// The same rows, the last one first.
    Upwards,
    /// Pairs of rows of 4 bytes in planes.
    Planes,
    /// Blocks of different lengths in no order.
    Scattered,
}

pub const ALL: [Lies; 5] = [Lies::Run, Lies::Rows, Lies::Upwards, Lies::Planes, Lies::Scattered];

impl Lies {
    /// Returns the layout of data, and the bytes that it takes. Its lowest byte is the first one, but for rows upwards: there
    /// the lowest byte lies so far below the address.
    pub fn layout(self, len: usize) -> (Layout, usize) {
        let (byte, rows) = (Predefined::Byte.datatype(), len as i64 / 8);
        let datatype = match self {
            Lies::Run => Datatype::contiguous(len as i64, &byte),
            Lies::Rows => Datatype::hvector(rows, 8, 12, &byte),
            Lies::Upwards => Datatype::hvector(rows, 8, -12, &byte),
            Lies::Planes => Datatype::hvector(2, 4, 7, &byte).and_then(|pair| Datatype::hvector(rows, 1, 15, &pair)),
            Lies::Scattered => {
                let (mut lengths, mut offsets, mut left, mut at) = (vec![], vec![], len as i64, 0);
                while left > 0 {
                    // Grows with the data, so that large data takes a bounded number of blocks.
                    let block = (1 + (lengths.len() as i64 * 7) % 13 + len as i64 / 600).min(left);
                    lengths.push(block);
                    offsets.push(at);
                    (at, left) = (at + block + lengths.len() as i64 % 3, left - block);
                }
                // Every second one from the end.
                let order: Vec<usize> = (0..lengths.len()).filter(|at| at % 2 == 0).collect();
                let odd = (0..lengths.len()).rev().filter(|at| at % 2 == 1);
                let order: Vec<usize> = order.into_iter().chain(odd).collect();
                let pick = |values: &[i64]| order.iter().map(|&at| values[at]).collect::<Vec<i64>>();
                Datatype::hindexed(&pick(&lengths), &pick(&offsets), &byte)
            }
        };
        let layout = datatype.unwrap().commit();
        let range = layout.span(1).map_or(0, |(_, range)| range as usize);
        (layout, range)
    }
}

/// Returns the offset of every byte of data, in packing order.
pub fn places(layout: &Layout) -> Vec<i64> {
    let bytes = |block: cableway_datatype::Block| (0..block.len as i64).map(move |at| block.offset + at);
    layout.blocks(1).flat_map(bytes).collect()
}
