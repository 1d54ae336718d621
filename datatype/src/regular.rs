//! Patterns that are nothing but a block repeated at constant distances: found without a look at every block, or in lists
//! of blocks. They need no other normal form.

use crate::node::Node;

/// A regular repetition: the number, and the bytes from one to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repetition {
    pub(crate) count: u64,
    pub(crate) stride: i128,
}

/// Checks whether a node is a nest of repetitions of one block, and is its own normal form: no block continues the block
/// before it in packing order.
pub(crate) fn is_regular(node: &Node) -> bool {
    // From the first block of a repetition to its last one, for the repetitions within the present one.
    fn reach(node: &Node, len: &mut u64) -> Option<i128> {
        let repeat = match node {
            Node::Block(block) => {
                *len = *block;
                return Some(0);
            }
            Node::Repeat(repeat) => repeat,
            Node::List(_) | Node::Sequence(_) => return None,
        };
        let inner = reach(&repeat.body, len)?;
        let stride = i128::from(repeat.stride);
        let jump = stride - inner;
        // A repetition that continues the inner one is part of it.
        let continues = match &*repeat.body {
            Node::Repeat(body) => i128::from(body.count) * i128::from(body.stride) == stride,
            _ => false,
        };
        (jump != i128::from(*len) && !continues).then_some(inner + i128::from(repeat.count - 1) * stride)
    }
    reach(node, &mut 0).is_some()
}

/// Returns the repetitions, the innermost first, of blocks of `len` bytes at such displacements in `unit` bytes. Returns
/// `None` if the blocks are no such nest, or one continues another.
pub(crate) fn nest_of(displacements: &[i64], unit: i128, len: i128) -> Option<Vec<Repetition>> {
    /// Deeper nests are as good as a list.
    const DEEPEST: usize = 8;
    let at = |index: usize| i128::from(displacements[index]);
    let mut found: Vec<Repetition> = Vec::new();
    let mut body = 1;
    while body < displacements.len() {
        let distance = at(body).checked_sub(at(0))?;
        let same = |index: &usize| at(*index).checked_sub(at(index - body)) == Some(distance);
        let count = 1 + (body..displacements.len()).step_by(body).take_while(same).count();
        let stride = distance.checked_mul(unit)?;
        let inner = found.iter().try_fold(0_i128, |reach, inner| {
            i128::from(inner.count - 1).checked_mul(inner.stride).and_then(|more| reach.checked_add(more))
        })?;
        if !displacements.len().is_multiple_of(body * count)
            || stride.checked_sub(inner)? == len
            || found.len() == DEEPEST
        {
            return None;
        }
        found.push(Repetition { count: count as u64, stride });
        body *= count;
    }
    // The first block of each repetition is in its place. Now all others.
    let mut body = 1;
    for repetition in &found {
        let next = body * repetition.count as usize;
        for group in displacements.chunks(next) {
            let first = i128::from(group[0]);
            let in_place = |(index, &displacement): (usize, &i64)| {
                let expected = repetition.stride.checked_mul(index as i128);
                expected.is_some() && (i128::from(displacement) - first).checked_mul(unit) == expected
            };
            if !group.iter().step_by(body).enumerate().all(in_place) {
                return None;
            }
        }
        body = next;
    }
    Some(found)
}
