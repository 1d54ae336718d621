//! Reductions.

use cableway_common_cuda::{Element, ReduceOperation};

use super::super::direct::direct;
use super::super::operands::Operands;
use super::super::shares::{Results, Shares};
use super::super::{Combine, Me, Place, Plan, doubling, halving, reduction, ring, scan, tree};
use super::{Random, Rank, each, run};

/// The operands of each rank: floats whose sum depends on the order.
fn operands(rank: u32, count: u64) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + u64::from(rank) * 101) % 1009) as f32 / 7.0 - 60.0).collect()
}

fn as_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

pub(super) fn sums(ranks: std::ops::Range<u32>, count: u64) -> Vec<f32> {
    let mut all = ranks.map(|rank| operands(rank, count));
    let first = all.next().unwrap_or_default();
    all.fold(first, |sum, more| sum.iter().zip(&more).map(|(a, b)| a + b).collect())
}

/// Builds each rank's plan with `build`, which gets the rank and the operands. The input is at the address 0, and the
/// output behind it or, in place, there, too. Returns every rank's output.
pub(super) fn reduce(
    size: u32,
    count: u64,
    in_place: bool,
    random: &mut Random,
    build: impl Fn(&mut Plan, Me, &Operands),
) -> Vec<Vec<f32>> {
    let bytes = count * 4;
    let output = if in_place { 0 } else { bytes as usize };
    let ranks = (0..size).map(|rank| {
        let mut plan = Plan {
            combine: Some(Combine { operation: ReduceOperation::Sum, element: Element::F32 }),
            ..Plan::default()
        };
        let operands_ = reduction::operands(&mut plan, Element::F32, Place::User(0), Place::User(output));
        build(&mut plan, Me { rank, size }, &operands_);
        let mut user = as_bytes(&operands(rank, count));
        user.resize(output + bytes as usize, 0x77);
        Rank::new(plan, user)
    });
    let ended = run(ranks.collect(), random);
    if !in_place {
        for (rank, user) in (0..).zip(&ended) {
            assert_eq!(floats(&user[..bytes as usize]), operands(rank, count), "the input of rank {rank} is unchanged");
        }
    }
    ended.iter().map(|user| floats(&user[output..])).collect()
}

pub(super) fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 0.01, "{found} is not {expected}");
    }
}

#[test]
fn allreduces_give_all_ranks_the_same_bits() {
    type Algorithm = fn(&mut Plan, Me, (&Operands, u64));
    let algorithms: [Algorithm; 5] = [
        |plan, me, operands| drop(doubling::doubling(plan, me, operands, &[])),
        |plan, me, operands| drop(halving::halving(plan, me, operands, &[])),
        |plan, me, operands| drop(ring::allreduce(plan, me, operands, 1000, &[])),
        |plan, me, operands| drop(ring::allreduce(plan, me, operands, 3, &[])),
        |plan, me, (operands, count)| {
            let shares = Shares::even(count, me.size);
            direct(plan, me, operands, &shares, (Results::Everywhere, 2), &[]);
        },
    ];
    for algorithm in algorithms {
        each(|size, count, in_place, random| {
            let outputs =
                reduce(size, count, in_place, random, |plan, me, operands| algorithm(plan, me, (operands, count)));
            assert_close(&outputs[0], &sums(0..size, count));
            for output in &outputs {
                assert_eq!(output, &outputs[0], "{size} ranks, {count} elements");
            }
        });
    }
}

#[test]
fn direct_exchanges_reduce_in_the_order_of_the_ranks() {
    each(|size, count, in_place, random| {
        let shares = Shares::even(count, size);
        let outputs = reduce(size, count, in_place, random, |plan, me, operands| {
            direct(plan, me, operands, &shares, (Results::Everywhere, 7), &[]);
        });
        assert_eq!(outputs[0], sums(0..size, count));
    });
}

#[test]
fn more_ranks_than_sources_of_a_reduction_exchange_directly() {
    let (size, count) = (37, 80);
    let outputs = reduce(size, count, true, &mut Random(5), |plan, me, operands| {
        direct(plan, me, operands, &Shares::even(count, size), (Results::Everywhere, 2), &[]);
    });
    for output in outputs {
        assert_eq!(output, sums(0..size, count));
    }
}

#[test]
fn only_the_root_gets_the_result_of_a_reduce() {
    each(|size, count, in_place, random| {
        let root = (count as u32) % size;
        // Other ranks than the root work in scratch memory.
        let at_root = |plan: &mut Plan, me: Me, operands: &Operands| {
            if me.rank == root { *operands } else { operands.with_output(plan.scratch(operands.bytes(count))) }
        };
        let outputs = reduce(size, count, in_place, random, |plan, me, operands| {
            let operands = at_root(plan, me, operands);
            tree::reduce(plan, me, root, (&operands, count), &[]);
        });
        assert_close(&outputs[root as usize], &sums(0..size, count));
        let outputs = reduce(size, count, in_place, random, |plan, me, operands| {
            let operands = at_root(plan, me, operands);
            direct(plan, me, &operands, &Shares::even(count, size), (Results::AtRoot(root), 3), &[]);
        });
        assert_eq!(outputs[root as usize], sums(0..size, count));
    });
}

#[test]
fn a_reduce_scatter_gives_each_rank_its_share() {
    each(|size, _, _, random| {
        let counts: Vec<u64> = (0..size).map(|rank| u64::from((rank * 5 + 3) % 7)).collect();
        let count = counts.iter().sum();
        let shares = Shares::of(counts.iter().copied());
        let outputs = reduce(size, count, false, random, |plan, me, operands| {
            direct(plan, me, operands, &shares, (Results::Scattered, 2), &[]);
        });
        let (all, mut from) = (sums(0..size, count), 0);
        for (output, &count) in outputs.iter().zip(&counts) {
            assert_eq!(output[..count as usize], all[from..from + count as usize]);
            from += count as usize;
        }
    });
}

#[test]
fn scans_reduce_the_ranks_before() {
    each(|size, count, in_place, random| {
        let inclusive = reduce(size, count, in_place, random, |plan, me, operands| {
            scan::inclusive(plan, me, (operands, count), &[]);
        });
        let exclusive = reduce(size, count, in_place, random, |plan, me, operands| {
            scan::exclusive(plan, me, (operands, count), &[]);
        });
        for rank in 0..size {
            assert_close(&inclusive[rank as usize], &sums(0..rank + 1, count));
            if rank > 0 {
                assert_close(&exclusive[rank as usize], &sums(0..rank, count));
            }
        }
    });
}
