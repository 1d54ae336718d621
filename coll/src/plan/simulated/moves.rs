//! Operations that move data.

use super::super::{Block, Me, Place, Plan, alltoall, broadcast, gather, neighbors, ring, tree};
use super::{Random, Rank, each, run};

/// Builds and runs plans that only move bytes, and returns the memory of each rank.
pub(super) fn moved(
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

pub(super) fn data(rank: u32, len: u64) -> Vec<u8> {
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
pub(super) fn blocks(size: u32, len: u64) -> Vec<Block> {
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

/// Every rank is its own left and right neighbour, then the same with the ranks before and after it, in a circle. What
/// goes to the left comes from the right. Message 4 has no data.
#[test]
fn neighbors_get_what_was_sent_towards_them() {
    each(|size, len, _, random| {
        let place = |slot: u64| Place::User((slot * len) as usize);
        let memory = |rank: u32| {
            let sent = (0..4).flat_map(|slot| data(rank * 16 + slot, len));
            sent.chain(std::iter::repeat_n(0, 5 * len as usize)).collect()
        };
        let ended = moved(size, memory, random, |plan, me| {
            let (left, right) = ((me.rank + size - 1) % size, (me.rank + 1) % size);
            let edge = |rank, message, slot| {
                let bytes = if message == 4 { 0 } else { len };
                neighbors::Edge { rank, message, block: Block::bytes(place(slot), bytes), bytes }
            };
            let sends =
                [edge(me.rank, 1, 0), edge(me.rank, 0, 1), edge(left, 3, 2), edge(right, 2, 3), edge(left, 4, 3)];
            let receives =
                [edge(me.rank, 0, 4), edge(me.rank, 1, 5), edge(left, 2, 6), edge(right, 3, 7), edge(right, 4, 8)];
            neighbors::exchange(plan, me, &sends, &receives);
        });
        for (rank, memory) in (0..).zip(ended) {
            let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
            let from = [(rank, 1), (rank, 0), (left, 3), (right, 2)];
            let expected: Vec<u8> = from.iter().flat_map(|(rank, slot)| data(rank * 16 + slot, len)).collect();
            assert_eq!(memory[4 * len as usize..8 * len as usize], expected);
            assert!(memory[8 * len as usize..].iter().all(|&byte| byte == 0));
        }
    });
}
