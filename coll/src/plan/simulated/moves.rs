//! Operations that move data.

use super::super::{Block, Me, Place, Plan, alltoall, broadcast, gather, ring, tree};
use super::{Random, Rank, each, run};

/// Builds and runs plans that only move bytes, and returns the memory of each rank.
fn moved(
    size: u32,
    memory: impl Fn(u32) -> Vec<u8>,
    random: &mut Random,
    build: impl Fn(&mut Plan, Me),
) -> Vec<Vec<u8>> {
    let ranks = (0..size).map(|rank| {
        let mut plan = Plan::default();
        build(&mut plan, Me { rank, size });
        Rank::new(plan, memory(rank))
    });
    run(ranks.collect(), random)
}

fn data(rank: u32, len: u64) -> Vec<u8> {
    (0..len).map(|i| (i * 3 + u64::from(rank) * 29 + 1) as u8).collect()
}

#[test]
fn every_rank_gets_the_roots_data() {
    each(|size, len, _, random| {
        let root = (len as u32) % size;
        let memory = |rank| if rank == root { data(root, len) } else { vec![0; len as usize] };
        let down_a_tree = moved(size, memory, random, |plan, me| {
            tree::broadcast(plan, me, root, Block::bytes(Place::User(0), len), &[]);
        });
        let scattered = moved(size, memory, random, |plan, me| {
            broadcast::scattered(plan, me, root, (Place::User(0), len), 3, &[]);
        });
        assert!(down_a_tree.iter().chain(&scattered).all(|memory| *memory == data(root, len)));
    });
}

/// The blocks of a rank: one of `len` bytes for each rank.
fn blocks(size: u32, len: u64) -> Vec<Block> {
    (0..size).map(|rank| Block::bytes(Place::User((u64::from(rank) * len) as usize), len)).collect()
}

#[test]
fn allgathers_bring_all_blocks_to_all_ranks() {
    each(|size, len, _, random| {
        let own = |rank: u32| {
            let mut memory = vec![0; (u64::from(size) * len) as usize];
            memory[(u64::from(rank) * len) as usize..][..len as usize].copy_from_slice(&data(rank, len));
            memory
        };
        let expected: Vec<u8> = (0..size).flat_map(|rank| data(rank, len)).collect();
        let ring = moved(size, own, random, |plan, me| drop(ring::allgather(plan, me, &blocks(size, len), &[])));
        let direct = moved(size, own, random, |plan, me| {
            let blocks = blocks(size, len);
            alltoall::exchange(plan, me, &vec![blocks[me.rank as usize]; size as usize], &blocks, &[]);
        });
        assert!(ring.iter().chain(&direct).all(|memory| *memory == expected));
    });
}

#[test]
fn an_exchange_in_place_swaps_blocks() {
    each(|size, len, _, random| {
        let memory = |rank: u32| (0..size).flat_map(|to| data(rank * 16 + to, len)).collect();
        let ended = moved(size, memory, random, |plan, me| {
            alltoall::exchange_in_place(plan, me, &blocks(size, len), &vec![len; size as usize]);
        });
        for (rank, memory) in (0..).zip(ended) {
            let expected: Vec<u8> = (0..size).flat_map(|from| data(from * 16 + rank, len)).collect();
            assert_eq!(memory, expected);
        }
    });
}

#[test]
fn gather_and_scatter_move_blocks_to_and_from_the_root() {
    each(|size, len, _, random| {
        let root = (len as u32) % size;
        let there = Block::bytes(Place::User((u64::from(size) * len) as usize), len);
        let memory = |rank: u32| {
            let mut memory: Vec<u8> = (0..size).flat_map(|of| data(rank * 16 + of, len)).collect();
            memory.extend(data(rank + 100, len));
            memory
        };
        let gathered = moved(size, memory, random, |plan, me| {
            if me.rank == root {
                gather::gather_at_root(plan, me, Some(there), &blocks(size, len));
            } else {
                plan.send(root, 0, there, &[]);
            }
        });
        let expected: Vec<u8> = (0..size).flat_map(|rank| data(rank + 100, len)).collect();
        assert_eq!(gathered[root as usize][..expected.len()], expected);
        let scattered = moved(size, memory, random, |plan, me| {
            if me.rank == root {
                gather::scatter_at_root(plan, me, Some(there), &blocks(size, len));
            } else {
                plan.receive(root, 0, there, &[]);
            }
        });
        for (rank, memory) in (0..).zip(scattered) {
            assert_eq!(memory[(u64::from(size) * len) as usize..], data(root * 16 + rank, len));
        }
    });
}
