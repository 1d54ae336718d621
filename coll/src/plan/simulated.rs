//! Tests of the algorithms: the plans of all ranks run in one thread, in a random order that their dependencies allow.
//!
//! A message is sent only once its receive has begun, and its data is copied at any time after that. Meanwhile the
//! memory to receive holds garbage. So a plan that reads too early, writes too early, or waits in a circle is found.

use std::collections::HashMap;

use cableway_common_cuda::{Element, ReduceOperation};

use super::direct::{Results, Shares, direct};
use super::reduction::Operands;
use super::{Block, Combine, Kind, Me, Place, Plan, StepId, Work};
use super::{alltoall, broadcast, doubling, gather, halving, ring, scan, tree};
use crate::reduce::on_host;

/// A generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// One rank: its plan, the program's memory (addresses count from 0), and its scratch memory.
struct Rank {
    plan: Plan,
    user: Vec<u8>,
    scratch: Vec<u8>,
    waiting: Vec<u32>,
    ready: Vec<StepId>,
}

impl Rank {
    fn new(plan: Plan, user: Vec<u8>) -> Rank {
        let waiting: Vec<u32> = plan.steps.iter().map(|step| step.predecessors).collect();
        let ready = (0..).zip(&waiting).filter(|step| *step.1 == 0).map(|step| step.0).collect();
        let scratch = vec![0xCC; plan.scratch as usize];
        Rank { plan, user, scratch, waiting, ready }
    }

    fn bytes(&mut self, place: Place, len: u64) -> &mut [u8] {
        let (memory, from) = match place {
            Place::User(address) => (&mut self.user, address),
            Place::Scratch(offset) => (&mut self.scratch, offset as usize),
        };
        &mut memory[from..from + len as usize]
    }

    fn block(&mut self, block: &Block) -> &mut [u8] {
        assert_eq!(block.kind, Kind::Bytes);
        self.bytes(block.place, block.count)
    }

    fn end(&mut self, step: StepId) {
        for at in 0..self.plan.steps[step as usize].successors.len() {
            let next = self.plan.steps[step as usize].successors[at];
            self.waiting[next as usize] -= 1;
            if self.waiting[next as usize] == 0 {
                self.ready.push(next);
            }
        }
    }
}

/// Runs the plans to their ends.
fn run(mut ranks: Vec<Rank>, random: &mut Random) -> Vec<Vec<u8>> {
    // By sender, receiver and number of the message.
    let mut sends: HashMap<(u32, u32, u32), StepId> = HashMap::new();
    let mut receives: HashMap<(u32, u32, u32), StepId> = HashMap::new();
    loop {
        let mut choices: Vec<(usize, Option<usize>)> = Vec::new();
        for (rank, state) in ranks.iter().enumerate() {
            choices.extend((0..state.ready.len()).map(|index| (rank, Some(index))));
        }
        let mut pairs: Vec<_> = sends.keys().filter(|key| receives.contains_key(key)).copied().collect();
        pairs.sort_unstable();
        choices.extend((0..pairs.len()).map(|pair| (pair, None)));
        if choices.is_empty() {
            break;
        }
        match choices[random.below(choices.len())] {
            (rank, Some(index)) => {
                let step = ranks[rank].ready.swap_remove(index);
                start(&mut ranks[rank], rank as u32, step, (&mut sends, &mut receives));
            }
            (pair, None) => {
                let key = pairs[pair];
                let (sent, received) = (sends.remove(&key).unwrap(), receives.remove(&key).unwrap());
                let (from, to) = (key.0 as usize, key.1 as usize);
                let Work::Send { block, .. } = ranks[from].plan.steps[sent as usize].work else { unreachable!() };
                let data = ranks[from].block(&block).to_vec();
                let Work::Receive { block, .. } = ranks[to].plan.steps[received as usize].work else { unreachable!() };
                ranks[to].block(&block).copy_from_slice(&data);
                ranks[from].end(sent);
                ranks[to].end(received);
            }
        }
    }
    for (rank, state) in ranks.iter().enumerate() {
        let stuck: Vec<_> = state.waiting.iter().filter(|left| **left != 0).collect();
        assert!(stuck.is_empty(), "rank {rank} of {} waits for ever", ranks.len());
    }
    assert!(sends.is_empty() && receives.is_empty(), "messages without a partner: {sends:?} {receives:?}");
    ranks.into_iter().map(|rank| rank.user).collect()
}

type Messages<'a> = &'a mut HashMap<(u32, u32, u32), StepId>;

fn start(state: &mut Rank, rank: u32, step: StepId, (sends, receives): (Messages<'_>, Messages<'_>)) {
    match &state.plan.steps[step as usize].work {
        &Work::Send { to, message, .. } => {
            assert_ne!(to, rank);
            assert!(sends.insert((rank, to, message), step).is_none(), "two messages {message} from {rank} to {to}");
        }
        &Work::Receive { from, message, block } => {
            state.block(&block).fill(0xAA);
            assert!(receives.insert((from, rank, message), step).is_none());
        }
        &Work::Copy { from, to } => {
            let data = state.block(&from).to_vec();
            state.block(&to).copy_from_slice(&data);
            state.end(step);
        }
        Work::Reduce { destination, sources, elements } => {
            let (destination, sources, elements) = (*destination, sources.clone(), *elements);
            let combine = state.plan.combine.unwrap();
            let len = elements * combine.element.size() as u64;
            let sources: Vec<*const u8> = sources.iter().map(|&source| state.bytes(source, len).as_ptr()).collect();
            let destination = state.bytes(destination, len).as_mut_ptr();
            // SAFETY: the slices above checked the ranges.
            unsafe { on_host(combine, destination, &sources, elements as usize) };
            state.end(step);
        }
    }
}

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

fn sums(ranks: std::ops::Range<u32>, count: u64) -> Vec<f32> {
    let mut all = ranks.map(|rank| operands(rank, count));
    let first = all.next().unwrap_or_default();
    all.fold(first, |sum, more| sum.iter().zip(&more).map(|(a, b)| a + b).collect())
}

/// Builds each rank's plan with `build`, which gets the rank and the operands. The input is at the address 0, and the
/// output behind it or, in place, there, too. Returns every rank's output.
fn reduce(
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
        let operands_ = Operands::new(&mut plan, Element::F32, Place::User(0), Place::User(output));
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

/// Calls a test with numbers of ranks and elements, in place and not.
fn each(mut test: impl FnMut(u32, u64, bool, &mut Random)) {
    for seed in 1..4 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.rotate_left(seed));
        for size in 2..=9 {
            for count in [1, 2, 3, u64::from(size), 31, 64, 65] {
                for in_place in [false, true] {
                    test(size, count, in_place, &mut random);
                }
            }
        }
    }
}

fn assert_close(found: &[f32], expected: &[f32]) {
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
