//! Algorithms over nodes of random shapes.

use super::super::hierarchy::{self, Between};
use super::super::{Me, Nodes, Place};
use super::moves::{blocks, data, moved};
use super::reductions::{assert_close, reduce, sums};
use super::{Random, each};

const ALL: [Between; 5] = [Between::Doubling, Between::Halving, Between::Ring, Between::Direct, Between::Tree];

/// Places ranks on nodes at random. So nodes have different numbers of ranks, which do not follow each other.
fn scattered(size: u32, random: &mut Random) -> Nodes {
    let nodes = 1 + random.below(size as usize);
    Nodes::of((0..size).map(|_| Some([random.below(nodes) as u8; 16])).collect::<Vec<_>>())
}

/// Calls a test with random nodes, each algorithm between them, and lengths of segments.
fn each_shape(mut test: impl FnMut(&Nodes, u64, bool, (Between, u64), &mut Random)) {
    each(|size, count, in_place, random| {
        let between = ALL[random.below(ALL.len())];
        // Short segments make more parts than lanes.
        let segment = [1, 2, 7, 1000][random.below(4)];
        let nodes = if random.below(4) == 0 { Nodes::even(size, 1 + size / 3) } else { scattered(size, random) };
        test(&nodes, count, in_place, (between, segment), random);
    });
}

#[test]
fn allreduces_over_nodes_give_all_ranks_the_same_bits() {
    each_shape(|nodes, count, in_place, (between, segment), random| {
        let size = nodes.ranks();
        let outputs = reduce(size, count, in_place, random, |plan, me, operands| {
            hierarchy::allreduce(plan, (me, nodes), (operands, count), (between, segment), &[]);
        });
        assert_close(&outputs[0], &sums(0..size, count));
        for output in &outputs {
            assert_eq!(output, &outputs[0], "{between:?} of {count} elements, {nodes:?}");
        }
    });
}

#[test]
fn every_algorithm_between_many_nodes_is_right() {
    for (between, nodes) in ALL.into_iter().flat_map(|between| [(between, 12), (between, 17)]) {
        let nodes = Nodes::even(40, nodes);
        for in_place in [false, true] {
            let outputs = reduce(40, 90, in_place, &mut Random(3), |plan, me, operands| {
                hierarchy::allreduce(plan, (me, &nodes), (operands, 90), (between, 5), &[]);
            });
            assert_close(&outputs[0], &sums(0..40, 90));
            assert!(outputs.iter().all(|output| *output == outputs[0]), "{between:?}");
        }
    }
}

#[test]
fn only_the_root_gets_the_result_of_a_reduce_over_nodes() {
    each_shape(|nodes, count, in_place, (between, segment), random| {
        let size = nodes.ranks();
        let root = (count as u32) % size;
        let outputs = reduce(size, count, in_place, random, |plan, me, operands| {
            // Other ranks than the root work in scratch memory.
            let at_root = me.rank == root;
            let output = if at_root { operands.output(0) } else { plan.scratch(operands.bytes(count)) };
            let operands = operands.with_output(output);
            hierarchy::reduce(plan, (me, nodes, root), (&operands, count), (between, segment), &[]);
        });
        assert_close(&outputs[root as usize], &sums(0..size, count));
    });
}

#[test]
fn every_rank_gets_the_roots_data_over_nodes() {
    each_shape(|nodes, len, _, (between, segment), random| {
        let size = nodes.ranks();
        let root = (len as u32 * 7) % size;
        let memory = |rank| if rank == root { data(root, len) } else { vec![0; len as usize] };
        let ended = moved(size, memory, random, |plan, me| {
            hierarchy::broadcast(plan, (me, nodes, root), (Place::User(0), len), (between, segment), &[]);
        });
        assert!(ended.iter().all(|memory| *memory == data(root, len)), "{between:?} of {len} bytes, {nodes:?}");
    });
}

#[test]
fn allgathers_over_nodes_bring_all_blocks_to_all_ranks() {
    each_shape(|nodes, len, _, _, random| {
        let size = nodes.ranks();
        let own = |rank: u32| {
            let mut memory = vec![0; (u64::from(size) * len) as usize];
            memory[(u64::from(rank) * len) as usize..][..len as usize].copy_from_slice(&data(rank, len));
            memory
        };
        let expected: Vec<u8> = (0..size).flat_map(|rank| data(rank, len)).collect();
        let ended = moved(size, own, random, |plan, me: Me| {
            let blocks = blocks(size, len);
            hierarchy::allgather(plan, (me, nodes), blocks[me.rank as usize], &blocks);
        });
        assert!(ended.iter().all(|memory| *memory == expected), "{nodes:?}");
    });
}

/// Each byte of an allreduce crosses between two nodes once in each direction, however many ranks they have.
#[test]
fn nodes_exchange_every_byte_once() {
    use super::super::{Plan, Work, reduction};
    use cableway_common_cuda::Element;

    let nodes = Nodes::even(8, 2);
    let mut crossed = 0;
    for rank in 0..8 {
        let mut plan = Plan::default();
        let operands = reduction::operands(&mut plan, Element::U8, Place::User(0), Place::User(4096));
        let me = Me { rank, size: 8 };
        hierarchy::allreduce(&mut plan, (me, &nodes), (&operands, 4096), (Between::Direct, 1 << 20), &[]);
        for step in &plan.steps {
            if let Work::Send { to, block, .. } = step.work
                && nodes.of_rank(to) != nodes.of_rank(rank)
            {
                crossed += block.count;
            }
        }
    }
    assert_eq!(crossed, 2 * 4096);
}
