//! Tests of the algorithms: the plans of all ranks run in one thread, in a random order that their dependencies allow.
//!
//! A message is sent only once its receive has begun, and its data is copied at any time after that. Meanwhile the
//! memory to receive holds garbage. So a plan that reads too early, writes too early, or waits in a circle is found.

mod hierarchies;
mod moves;
mod pieces;
mod reductions;

use std::collections::HashMap;

use super::{Block, Kind, Place, Plan, StepId, Work};
use crate::random::Random;
use crate::reduce::on_host;

/// The bytes before and behind the scratch memory that nothing may change.
const MARGIN: usize = 256;

/// One rank: its plan, the program's memory (addresses count from 0), and its scratch memory between margins.
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
        let scratch = vec![0xCC; plan.scratch as usize + 2 * MARGIN];
        Rank { plan, user, scratch, waiting, ready }
    }

    fn bytes(&mut self, place: Place, len: u64) -> &mut [u8] {
        let (memory, from) = match place {
            Place::User(address) => (&mut self.user[..], address),
            Place::Scratch(offset) => {
                let end = self.scratch.len() - MARGIN;
                (&mut self.scratch[..end], MARGIN + offset as usize)
            }
        };
        &mut memory[from..from + len as usize]
    }

    /// Returns the runs of bytes of a block.
    fn runs(&self, block: &Block) -> Vec<(Place, u64)> {
        match block.kind {
            Kind::Bytes => vec![(block.place, block.count)],
            Kind::Typed(kind) => {
                let blocks = self.plan.types[kind].blocks(block.count);
                blocks.map(|run| (block.place.offset(run.offset), run.len)).collect()
            }
        }
    }

    fn read(&mut self, block: &Block) -> Vec<u8> {
        self.runs(block).into_iter().flat_map(|(place, len)| self.bytes(place, len).to_vec()).collect()
    }

    fn write(&mut self, block: &Block, data: &[u8]) {
        let runs = self.runs(block);
        assert_eq!(runs.iter().map(|run| run.1).sum::<u64>(), data.len() as u64);
        let mut from = 0;
        for (place, len) in runs {
            self.bytes(place, len).copy_from_slice(&data[from..from + len as usize]);
            from += len as usize;
        }
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
                let data = ranks[from].read(&block);
                let Work::Receive { block, .. } = ranks[to].plan.steps[received as usize].work else { unreachable!() };
                ranks[to].write(&block, &data);
                ranks[from].end(sent);
                ranks[to].end(received);
            }
        }
    }
    for (rank, state) in ranks.iter().enumerate() {
        let stuck: Vec<_> = state.waiting.iter().filter(|left| **left != 0).collect();
        assert!(stuck.is_empty(), "rank {rank} of {} waits for ever", ranks.len());
        let margins = state.scratch[..MARGIN].iter().chain(&state.scratch[state.scratch.len() - MARGIN..]);
        assert!(margins.into_iter().all(|&byte| byte == 0xCC), "rank {rank} wrote beside its scratch memory");
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
            let len = state.runs(&block).iter().map(|run| run.1).sum::<u64>();
            state.write(&block, &vec![0xAA; len as usize]);
            assert!(receives.insert((from, rank, message), step).is_none());
        }
        &Work::Copy { from, to } => {
            let data = state.read(&from);
            state.write(&to, &data);
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
        Work::Fold { slots, elements } => {
            let (slots, elements) = (slots.clone(), *elements);
            let function = state.plan.function.unwrap();
            let base = state.scratch[MARGIN..].as_mut_ptr();
            for pair in slots.windows(2) {
                let [Place::Scratch(input), Place::Scratch(inout)] = *pair else { panic!("a slot of the program's") };
                let at = |offset: u64| base.wrapping_offset(offset as i64 as isize);
                // SAFETY: the slots are in the scratch memory, or a little beside it if the plan is wrong. The margins are
                // wider than the tests' elements, and are checked at the end.
                unsafe { function.apply(at(input), at(inout), elements) };
            }
            state.end(step);
        }
        Work::Exchange(_) | Work::OneShot(_) => unreachable!("jobs of several processes test it"),
    }
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
