//! The normal form of a pattern: regular parts become repetitions, adjacent blocks become one, and the order stays.
//!
//! [`normalise`] depends on the sequence of blocks only, so that types with the same bytes in the same order get the
//! same tree. A type is expanded into its blocks up to [`EXPANDED_BLOCKS`]. A larger one keeps the structure of its
//! constructors, normalised level by level by the same rules.

use std::ops::ControlFlow;

use crate::node::{Node, Placed, Repeat};
use crate::regular::is_regular;
use crate::walk::{Collect, walk_node};

/// Types of at most this many blocks are equal if and only if their bytes are.
pub(crate) const EXPANDED_BLOCKS: u64 = 4096;

/// The longest run of different items that is tested as the body of a repetition within a longer sequence.
const LONGEST_PERIOD: usize = 8;

/// The smallest number of blocks that become a repetition within a list. For a few irregular blocks a list is denser.
const WORTH_A_REPEAT: usize = 16;

/// Returns the normal form of a whole type.
pub(crate) fn normalise(placed: Placed) -> Placed {
    if placed.node.blocks() > EXPANDED_BLOCKS || is_regular(&placed.node) {
        return placed;
    }
    let mut runs = Collect::new(usize::MAX);
    let ControlFlow::Continue(()) = walk_node(&placed.node, placed.offset, &mut runs) else { return placed };
    let items = runs.pieces.iter().map(|run| Placed { offset: run.offset, node: Node::Block(run.len) }).collect();
    compress(items).unwrap_or(placed)
}

/// Combines items in packing order into one pattern. Returns `None` if there is no item.
pub(crate) fn compress(items: Vec<Placed>) -> Option<Placed> {
    let mut items = merge(items);
    loop {
        if items.len() <= 1 {
            return items.pop();
        }
        if let Some(period) = whole_period(&items) {
            let count = (items.len() / period) as u64;
            let stride = items[period].offset - items[0].offset;
            items.truncate(period);
            let body = compress(items)?;
            return Some(Placed { offset: body.offset, node: Node::repeat(count, stride, body.node) });
        }
        let before = items.len();
        for period in 1..=LONGEST_PERIOD {
            items = fold(items, period);
        }
        if items.len() == before {
            return Some(Node::sequence(gather_blocks(items)));
        }
        items = merge(items);
    }
}

/// Replaces short lists and sequences by their parts, and joins every item with the previous one if it continues that.
fn merge(items: Vec<Placed>) -> Vec<Placed> {
    let mut merged: Vec<Placed> = Vec::with_capacity(items.len());
    for item in items {
        match &item.node {
            Node::Sequence(sequence) if sequence.parts.len() as u64 <= EXPANDED_BLOCKS => {
                for part in sequence.parts.iter() {
                    push(&mut merged, Placed { offset: item.offset + part.offset, node: part.node.clone() });
                }
            }
            Node::List(list) if list.pieces.len() as u64 <= EXPANDED_BLOCKS => {
                for pair in list.pieces.windows(2) {
                    let node = Node::Block(pair[1].start - pair[0].start);
                    push(&mut merged, Placed { offset: item.offset + pair[0].offset, node });
                }
            }
            _ => push(&mut merged, item),
        }
    }
    merged
}

fn push(merged: &mut Vec<Placed>, item: Placed) {
    if let Some(last) = merged.last_mut() {
        let distance = i128::from(item.offset) - i128::from(last.offset);
        if let Some(node) = joined(&last.node, &item.node, distance) {
            last.node = node;
            return;
        }
    }
    merged.push(item);
}

/// Joins `first` and `second`, which is `distance` bytes from it, if they form a block or a longer repetition.
fn joined(first: &Node, second: &Node, distance: i128) -> Option<Node> {
    let longer = |repeat: &Repeat, by: u64| Node::Repeat(Repeat { count: repeat.count + by, ..repeat.clone() });
    match (first, second) {
        (Node::Block(a), Node::Block(b)) if distance == i128::from(*a) => Some(Node::Block(a + b)),
        (Node::Repeat(a), b) if distance == i128::from(a.count) * i128::from(a.stride) => match b {
            Node::Repeat(b) if a.stride == b.stride && a.body == b.body => Some(longer(a, b.count)),
            b if *a.body == *b => Some(longer(a, 1)),
            _ => None,
        },
        (a, Node::Repeat(b)) if distance == i128::from(b.stride) && *b.body == *a => Some(longer(b, 1)),
        _ => None,
    }
}

/// Checks whether items `i` and `j` are the same step: the same pattern at the same distance from the previous item.
fn same_step(items: &[Placed], i: usize, j: usize) -> bool {
    items[i].node == items[j].node && items[i].offset - items[i - 1].offset == items[j].offset - items[j - 1].offset
}

/// Returns the shortest period of which the whole sequence consists, repeated at a constant distance.
fn whole_period(items: &[Placed]) -> Option<usize> {
    // The failure function of Knuth, Morris and Pratt over the steps; `border[i]` belongs to step `i + 1`.
    let steps = items.len() - 1;
    let mut border = vec![0; steps];
    let mut matched = 0;
    for i in 1..steps {
        while matched > 0 && !same_step(items, i + 1, matched + 1) {
            matched = border[matched - 1];
        }
        if same_step(items, i + 1, matched + 1) {
            matched += 1;
        }
        border[i] = matched;
    }
    let mut overlap = border[steps - 1];
    loop {
        let period = steps - overlap;
        if period < items.len() && items.len().is_multiple_of(period) && items[0].node == items[period].node {
            return Some(period);
        }
        if overlap == 0 {
            return None;
        }
        overlap = border[overlap - 1];
    }
}

/// Replaces runs of at least [`WORTH_A_REPEAT`] items that repeat every `period` items.
fn fold(items: Vec<Placed>, period: usize) -> Vec<Placed> {
    let worth = |i: usize| {
        let count = repetitions(&items[i..], period);
        (count >= 2 && count * period >= WORTH_A_REPEAT).then_some(count)
    };
    // Usually nothing is folded, and nothing is moved.
    let Some(first) = (0..items.len()).find(|&i| worth(i).is_some()) else { return items };
    let mut folded = items[..first].to_vec();
    let mut i = first;
    while i < items.len() {
        let body = |count| Some((count, compress(items[i..i + period].to_vec())?));
        match worth(i).and_then(body) {
            Some((count, body)) => {
                let stride = items[i + period].offset - items[i].offset;
                folded.push(Placed { offset: body.offset, node: Node::repeat(count as u64, stride, body.node) });
                i += count * period;
            }
            None => {
                folded.push(items[i].clone());
                i += 1;
            }
        }
    }
    folded
}

/// Counts how often the first `period` items occur consecutively at a constant distance.
fn repetitions(items: &[Placed], period: usize) -> usize {
    let Some(second) = items.get(period) else { return 1 };
    let stride = second.offset - items[0].offset;
    let same =
        |i: usize| items[i].node == items[i - period].node && items[i].offset - items[i - period].offset == stride;
    let mut len = period;
    while len < items.len() && same(len) {
        len += 1;
    }
    len / period
}

/// Combines adjacent blocks between other patterns into lists, their densest form.
fn gather_blocks(items: Vec<Placed>) -> Vec<Placed> {
    if items.iter().all(|item| matches!(item.node, Node::Block(_))) {
        return items;
    }
    let mut gathered = Vec::with_capacity(items.len());
    let mut blocks = Vec::new();
    for item in items {
        if matches!(item.node, Node::Block(_)) {
            blocks.push(item);
            continue;
        }
        flush(&mut blocks, &mut gathered);
        gathered.push(item);
    }
    flush(&mut blocks, &mut gathered);
    gathered
}

fn flush(blocks: &mut Vec<Placed>, gathered: &mut Vec<Placed>) {
    match blocks.len() {
        0 | 1 => gathered.append(blocks),
        _ => gathered.push(Node::sequence(std::mem::take(blocks))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::regular::nest_of;

    /// The displacements of a nest, the innermost repetition first.
    fn places(nest: &[(usize, i64)]) -> Vec<i64> {
        nest.iter().fold(vec![0], |inner, &(count, stride)| {
            (0..count as i64).flat_map(|index| inner.iter().map(move |place| place + index * stride)).collect()
        })
    }

    fn block_by_block(displacements: &[i64], len: u64) -> Option<Placed> {
        compress(displacements.iter().map(|&offset| Placed { offset, node: Node::Block(len) }).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

        #[test]
        fn a_nest_is_its_own_normal_form(
            nest in prop::collection::vec((2..5_usize, -12..13_i64), 0..4),
            len in 1..5_u64,
        ) {
            let placed = block_by_block(&places(&nest), len).expect("there are blocks");
            let node = nest.iter().fold(Node::Block(len), |inner, &(count, stride)| Node::repeat(count as u64, stride, inner));
            if is_regular(&node) {
                prop_assert_eq!(placed.node, node);
            }
        }

        #[test]
        fn nests_are_found_and_nothing_else(
            nest in prop::collection::vec((2..5_usize, -12..13_i64), 0..4),
            len in 1..5_u64,
            moved in prop::option::of((any::<prop::sample::Index>(), 1..3_i64)),
        ) {
            let mut displacements = places(&nest);
            if let Some((index, by)) = moved {
                let index = index.index(displacements.len());
                displacements[index] += by;
            }
            let placed = block_by_block(&displacements, len).expect("there are blocks");
            if let Some(found) = nest_of(&displacements, 1, len.into()) {
                let node = found.iter().fold(Node::Block(len), |inner, repetition| {
                    Node::repeat(repetition.count, repetition.stride as i64, inner)
                });
                prop_assert_eq!(placed, Placed { offset: displacements[0], node });
            }
        }
    }

    #[test]
    fn matrices_and_cubes_are_nests() {
        let found = |displacements: &[i64]| {
            nest_of(displacements, 4, 8).map(|nest| nest.iter().map(|r| (r.count, r.stride)).collect::<Vec<_>>())
        };
        assert_eq!(found(&places(&[(6, 30)])), Some(vec![(6, 120)]));
        assert_eq!(found(&places(&[(6, 30), (3, 1000)])), Some(vec![(6, 120), (3, 4000)]));
        assert_eq!(found(&[0, 30, 61]), None);
        // Blocks that continue each other are one.
        assert_eq!(found(&[0, 2, 4]), None);
    }
}
