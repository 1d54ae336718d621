//! One-sided operations, directly and by the owner, compared with a model of memory.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Request, Signal, SignalUpdate};
use proptest::prelude::*;
use zerocopy::IntoBytes;

use common::sides::{Sides, memory};
use common::{Link, pattern};

/// An operation under way: its request, its buffer, and what a get must have read.
type Started = (Box<Request>, Vec<u8>, Option<Vec<u8>>);

fn links() -> [Link; 3] {
    let link = Link::new("net", Flags::GET | Flags::PUT);
    let late = link.with(|link| link.asynchronous = true);
    [link, late, late.with(|link| link.busy = 600)]
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        at: usize,
        len: usize,
        seed: u8,
    },
    Get {
        at: usize,
        len: usize,
    },
    /// The next operation changes the word of signals, by adding this or by setting it.
    Signal {
        add: bool,
        value: u64,
    },
    Fence,
    Renew,
}

const MEMORY: usize = 60_000;

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..MEMORY, 0..MEMORY).prop_map(|(at, len)| (at, len.min(MEMORY - at)));
    prop_oneof![
        4 => (place(), any::<u8>()).prop_map(|((at, len), seed)| Step::Put { at, len, seed }),
        3 => place().prop_map(|(at, len)| Step::Get { at, len }),
        3 => (0..MEMORY - 50, 0..50_usize, any::<u8>()).prop_map(|(at, len, seed)| Step::Put { at, len, seed }),
        3 => any::<(bool, u64)>().prop_map(|(add, value)| Step::Signal { add, value }),
        2 => Just(Step::Fence),
        1 => Just(Step::Renew),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Operations with a fence between them act as on memory of this process, whichever way they go.
    #[test]
    fn fenced_operations_agree_with_a_model(which in 0..3_usize, steps in prop::collection::vec(step(), 1..40)) {
        let sides = Sides::new(2, &[links()[which]]);
        let (mut words, mut model) = (memory(MEMORY), vec![0_u8; MEMORY]);
        let (address, len) = (words.as_mut_bytes().as_mut_ptr(), MEMORY);
        let mut window = sides.register_at(1, address, len);
        let (mut word, mut expected, mut update) = ([0_u64], 0_u64, None);
        let signals = sides.register_at(1, word.as_mut_ptr().cast(), 8);
        let mut started: Vec<Started> = Vec::new();
        for step in steps {
            sides.sides[0].fence(None);
            let mut signal = None;
            if matches!(step, Step::Put { .. } | Step::Get { .. }) {
                signal = update.take().map(|update| Signal { at: signals.key().at(0), update });
                match signal.map(|signal| signal.update) {
                    Some(SignalUpdate::Add(value)) => expected = expected.wrapping_add(value),
                    Some(SignalUpdate::Set(value)) => expected = value,
                    None => {}
                }
            }
            match step {
                Step::Signal { add, value } => {
                    update = Some(if add { SignalUpdate::Add(value) } else { SignalUpdate::Set(value) });
                }
                Step::Put { at, len, seed } => {
                    let data = pattern(len, seed);
                    model[at..at + len].copy_from_slice(&data);
                    started.push((sides.start_put(0, &data, window.key().at(at as u64), signal), data, None));
                }
                Step::Get { at, len } => {
                    let mut room = vec![0; len];
                    let get = sides.start_get(0, &mut room, window.key().at(at as u64), signal);
                    started.push((get, room, Some(model[at..at + len].to_vec())));
                }
                Step::Fence => {
                    sides.ranks.settle();
                    prop_assert_eq!(signals.load(0).unwrap(), expected);
                }
                Step::Renew => {
                    let requests: Vec<&Request> = started.iter().map(|(request, ..)| &**request).collect();
                    sides.ranks.finish(&requests);
                    drop(window);
                    window = sides.register_at(1, address, len);
                }
            }
        }
        let requests: Vec<&Request> = started.iter().map(|(request, ..)| &**request).collect();
        sides.ranks.finish(&requests);
        prop_assert_eq!(signals.load(0).unwrap(), expected);
        drop((window, signals));
        for (request, room, expected) in &started {
            prop_assert!(request.result().is_ok());
            prop_assert!(expected.as_ref().is_none_or(|expected| expected == room));
        }
        prop_assert!(words.as_bytes()[..MEMORY] == model);
    }
}
