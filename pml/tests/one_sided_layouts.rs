//! Puts and gets of elements of layouts, on either side, compared with a model of memory.

mod common;

use cableway_btl::Flags;
use cableway_pml::{Buffer, Error, Refusal, RemoteKey, Signal, SignalUpdate};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use common::layouts::{ALL, Lies, places};
use common::sides::{Sides, memory};
use common::{Link, pattern};

const MEMORY: usize = 120_000;

/// Memory of one side: zeros, and how data lies in it.
struct Room {
    bytes: Vec<u8>,
    layout: cableway_datatype::Layout,
    /// Of the address from which offsets count.
    origin: usize,
}

impl Room {
    fn new(lies: Lies, len: usize, margin: usize) -> Room {
        let (layout, range) = lies.layout(len);
        let low = layout.span(1).map_or(0, |(low, _)| low);
        Room { bytes: vec![0; range + margin], layout, origin: (margin as i64 / 2 - low) as usize }
    }

    fn buffer(&mut self) -> Buffer<'_> {
        Buffer::typed(self.bytes.as_mut_ptr().wrapping_add(self.origin), 1, &self.layout)
    }

    /// Stores packed data where it lies.
    fn scatter(&self, into: &mut [u8], packed: &[u8]) {
        for (at, byte) in places(&self.layout).iter().zip(packed) {
            into[(self.origin as i64 + at) as usize] = *byte;
        }
    }
}

fn links() -> Vec<Link> {
    let rdma = Link::new("net", Flags::GET | Flags::PUT);
    vec![Link::new("net", Flags::empty()), rdma, rdma.with(|link| link.asynchronous = true)]
}

fn lies() -> impl Strategy<Value = Lies> {
    prop::sample::select(&ALL[..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Every byte arrives where the model has it, and no other byte changes, whichever way it goes.
    #[test]
    fn layouts_on_both_sides_agree_with_a_model(
        which in 0..3_usize,
        steps in prop::collection::vec((lies(), lies(), 0..7000_usize, any::<(u8, bool, bool)>()), 1..8),
    ) {
        let sides = Sides::new(2, &[links()[which]]);
        let (mut words, mut model) = (memory(MEMORY), vec![0_u8; MEMORY]);
        let (mut word, mut given) = ([0_u64], 0);
        let window = sides.register_at(1, words.as_mut_bytes().as_mut_ptr(), MEMORY);
        let signals = sides.register_at(1, word.as_mut_ptr().cast(), 8);
        for (here, there, eighths, (seed, put, signaled)) in steps {
            let len = 8 * (eighths / if here == Lies::Run { 1 } else { 8 });
            let (mut room, target) = (Room::new(here, len, 6), Room::new(there, len, 2 * usize::from(seed)));
            let key = window.key();
            let to = key.at(target.origin as u64).typed(1, &target.layout);
            let signal = signaled.then_some(Signal { at: signals.key().at(0), update: SignalUpdate::Add(1) });
            given += u64::from(signaled);
            if put {
                let data = pattern(len, seed);
                let mut content = room.bytes.clone();
                room.scatter(&mut content, &data);
                room.bytes = content;
                target.scatter(&mut model, &data);
                sides.put_from(0, room.buffer(), to, signal).unwrap();
            } else {
                let data: Vec<u8> = places(&target.layout).iter()
                    .map(|at| model[(target.origin as i64 + at) as usize]).collect();
                let mut expected = room.bytes.clone();
                room.scatter(&mut expected, &data);
                sides.get_into(0, room.buffer(), to, signal).unwrap();
                prop_assert!(room.bytes == expected, "get of {} bytes, {:?} from {:?}", len, here, there);
            }
            prop_assert_eq!(signals.load(0).unwrap(), given);
        }
        drop((window, signals));
        prop_assert!(words.as_bytes()[..MEMORY] == model);
    }
}

/// The owner checks every element itself: a key that says more than was registered gets nothing.
#[test]
fn elements_beyond_the_registration_are_refused_by_the_owner() {
    for link in links() {
        let sides = Sides::new(2, &[link]);
        let mut words = memory(4096);
        let window = sides.register_at(1, words.as_mut_bytes().as_mut_ptr(), 2048);
        let signals = sides.register_at(1, words.as_mut_bytes()[4088..].as_mut_ptr(), 8);
        let mut bytes = [0; size_of::<RemoteKey>()];
        bytes.copy_from_slice(window.key().as_bytes());
        bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        let larger = RemoteKey::read_from_bytes(&bytes).unwrap();
        for lies in ALL {
            let (layout, range) = lies.layout(512);
            let low = layout.span(1).unwrap().0;
            let signal = Signal { at: signals.key().at(0), update: SignalUpdate::Set(1) };
            let mut data = vec![7_u8; 512];
            let last = (2048 - range) as i64 - low;
            for (offset, inside) in [(last, true), (last + 1, false), (1 << 40, false), (i64::MAX - (1 << 20), false)] {
                let (to, len) = (larger.at(offset as u64).typed(1, &layout), data.len() as u64);
                let got = sides.get_into(0, Buffer::bytes(data.as_mut_ptr(), len), to, None);
                let refused =
                    |got: &Result<(), Error>| matches!(got, Err(Error::Refused { refusal: Refusal::OutOfRange, .. }));
                assert_eq!(got.is_ok(), inside, "{lies:?} at {offset}: {got:?}");
                assert!(inside || refused(&got), "{lies:?} at {offset}: {got:?}");
                if !inside {
                    data.fill(7);
                    let put = sides.put_from(0, Buffer::bytes(data.as_ptr(), len), to, Some(signal));
                    assert!(refused(&put), "{lies:?} at {offset}: {put:?}");
                }
            }
        }
        drop((window, signals));
        assert!(words.iter().all(|&word| word == 0));
    }
}
