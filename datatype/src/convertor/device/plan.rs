//! The driver calls that move a range of a message.

use std::ops::{ControlFlow, Range};

use crate::convertor::message::Message;
use crate::node::Node;
use crate::walk::{Visitor, nth, walk_node};

/// One driver call: `rows` rows of `width` bytes. The pitches of a single row are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// The offset of the first row from the message's base.
    pub(super) offset: i64,
    pub(super) pitch: u64,
    /// The position of its first row in the packed bytes of the range.
    pub(super) packed: u64,
    pub(super) packed_pitch: u64,
    pub(super) width: u64,
    pub(super) rows: u64,
}

/// The calls for a range, in packing order of their first rows. A regular part takes one call, however many blocks it
/// has.
/// has.
pub(super) struct Plan {
    pub(super) copies: Vec<Copy>,
    packed: u64,
}

impl Plan {
    pub(super) fn new(message: &Message<'_>, range: Range<u64>) -> Plan {
        let mut plan = Plan { copies: Vec::new(), packed: 0 };
        let _whole = message.walk(range, &mut plan);
        plan
    }

    fn push(&mut self, copy: Copy) {
        // Join adjacent blocks at the border between two parts of the tree.
        if let Some(last) = self.copies.last_mut()
            && last.rows == 1
            && copy.rows == 1
            && last.packed + last.width == copy.packed
            && last.offset.checked_add_unsigned(last.width) == Some(copy.offset)
        {
            last.width += copy.width;
            return;
        }
        self.copies.push(copy);
    }

    /// Adds one call for each block of `body`, over all of its repetitions.
    fn columns(&mut self, offset: i64, count: u64, stride: u64, body: &Node) {
        let mut blocks = Plan { copies: Vec::new(), packed: 0 };
        let _whole = walk_node(body, offset, &mut Flat(&mut blocks));
        for block in blocks.copies {
            let first = Copy { packed: self.packed + block.packed, ..block };
            if block.width <= stride {
                self.push(Copy { pitch: stride, packed_pitch: body.size(), rows: count, ..first });
                continue;
            }
            // Overlapping rows: data that is sent twice, which 2-D copies do not support.
            for i in 0..count {
                let offset = nth(block.offset, i, stride as i64);
                self.push(Copy { offset, packed: first.packed + i * body.size(), ..first });
            }
        }
        self.packed += count * body.size();
    }
}

impl Visitor for Plan {
    fn block(&mut self, offset: i64, len: u64) -> ControlFlow<()> {
        self.push(Copy { offset, pitch: len, packed: self.packed, packed_pitch: len, width: len, rows: 1 });
        self.packed += len;
        ControlFlow::Continue(())
    }

    fn repeat(&mut self, offset: i64, count: u64, stride: i64, body: &Node) -> ControlFlow<()> {
        // Either the body's calls for each repetition, or for each of its blocks a call for all repetitions.
        match u64::try_from(stride) {
            Ok(stride) if stride != 0 && body.blocks() < count.saturating_mul(calls(body)) => {
                self.columns(offset, count, stride, body);
                ControlFlow::Continue(())
            }
            _ => (0..count).try_for_each(|i| walk_node(body, nth(offset, i, stride), self)),
        }
    }
}

/// Passes on single blocks only.
struct Flat<'p>(&'p mut Plan);

impl Visitor for Flat<'_> {
    fn block(&mut self, offset: i64, len: u64) -> ControlFlow<()> {
        self.0.block(offset, len)
    }
}

/// Counts the calls for a whole node.
fn calls(node: &Node) -> u64 {
    match node {
        Node::Block(_) => 1,
        Node::List(_) => node.blocks(),
        Node::Sequence(sequence) => sequence.parts.iter().map(|part| calls(&part.node)).sum(),
        Node::Repeat(repeat) => {
            let each = repeat.count.saturating_mul(calls(&repeat.body));
            if repeat.stride > 0 { each.min(repeat.body.blocks()) } else { each }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datatype::Datatype;
    use crate::error::Error;
    use crate::predefined::Predefined;

    /// Executes the calls for a range on host memory, as the driver would, and compares the result with the layout's
    /// blocks. Returns the number of calls.
    fn check(datatype: &Datatype, count: u64, range: Range<u64>) -> usize {
        let layout = datatype.commit();
        let message = Message { layout: Some(&layout), count, base: std::ptr::null_mut() };
        let plan = Plan::new(&message, range.clone());
        let mut offsets = vec![None; (range.end - range.start) as usize];
        for copy in &plan.copies {
            for row in 0..copy.rows {
                assert!(copy.rows == 1 || copy.pitch >= copy.width && copy.packed_pitch >= copy.width);
                for byte in 0..copy.width {
                    let packed = (copy.packed + row * copy.packed_pitch + byte) as usize;
                    let offset = copy.offset + (row * copy.pitch + byte) as i64;
                    assert_eq!(offsets[packed].replace(offset), None, "byte {packed} is copied twice");
                }
            }
        }
        let bytes = layout.blocks(count).flat_map(|block| block.offset..block.offset + block.len as i64);
        let expected: Vec<Option<i64>> = bytes.skip(range.start as usize).take(offsets.len()).map(Some).collect();
        assert_eq!(offsets, expected);
        plan.copies.len()
    }

    fn whole(datatype: &Datatype, count: u64) -> usize {
        check(datatype, count, 0..datatype.size() * count)
    }

    #[test]
    fn regular_types_take_few_calls() -> Result<(), Error> {
        let int = Predefined::Int.datatype();
        let vector = Datatype::vector(1000, 3, 8, &int)?;
        assert_eq!(whole(&vector, 1), 1);
        // Elements that continue at the vector's own distance share the rows.
        assert_eq!(whole(&Datatype::resized(&vector, 0, 32_000)?, 5), 1);
        assert_eq!(whole(&vector, 5), 5);
        // A partial row at either end.
        assert_eq!(check(&vector, 1, 5..11_999), 3);
        assert_eq!(check(&vector, 1, 12..11_988), 1);
        assert_eq!(check(&vector, 1, 13..14), 1);
        // Pairs, many times: two columns.
        let pair = Datatype::resized(&Datatype::vector(2, 1, 2, &int)?, 0, 64)?;
        assert_eq!(whole(&pair, 1000), 2);
        assert_eq!(whole(&Datatype::contiguous(1000, &pair)?, 1), 2);
        // An array of structures: one column for each field.
        let (double, char) = (Predefined::Double.datatype(), Predefined::Char.datatype());
        let structure = Datatype::structure(&[1, 1, 2], &[0, 12, 16], &[int.clone(), char, double])?;
        assert_eq!(whole(&structure, 1000), 3);
        assert_eq!(check(&structure, 1000, 3..20_995), 3 + 6);
        // A block of a cube: one call for each plane of the dimension with the fewest planes.
        let cube = Datatype::subarray(&[50, 40, 30], &[20, 3, 10], &[0; 3], crate::ArrayOrder::C, &int)?;
        assert_eq!(whole(&cube, 1), 3);
        Ok(())
    }

    #[test]
    fn irregular_types_take_a_call_for_each_block() -> Result<(), Error> {
        let int = Predefined::Int.datatype();
        let displacements: Vec<i64> = (0..50).map(|i| i * i).collect();
        let squares = Datatype::indexed_block(1, &displacements, &int)?;
        // The blocks at the squares of 0 and 1 are adjacent.
        assert_eq!(whole(&squares, 1), 49);
        assert_eq!(whole(&squares, 1000), 49);
        assert_eq!(whole(&Datatype::vector(20, 1, -2, &int)?, 1), 20);
        assert_eq!(whole(&Datatype::hvector(20, 1, 2, &int)?, 1), 20);
        assert_eq!(whole(&Datatype::hvector(20, 1, 0, &int)?, 1), 20);
        Ok(())
    }
}
