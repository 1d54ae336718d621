//! The table against a model that keeps every registration that ever was.

use proptest::prelude::*;

use super::*;

/// A registration of the model.
struct Known {
    name: Name,
    region: Region,
    pins: Vec<Pin>,
    closed: bool,
    removed: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Add {
        address: usize,
        len: u64,
    },
    Pin {
        which: prop::sample::Index,
        offset: u64,
        len: u64,
    },
    /// Flips one bit of a name.
    Forge {
        which: prop::sample::Index,
        bit: usize,
    },
    Unpin {
        which: prop::sample::Index,
    },
    Close {
        which: prop::sample::Index,
    },
    Remove {
        which: prop::sample::Index,
    },
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..40, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 7), 1 => any::<u64>()]
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<prop::sample::Index>;
    let address = prop_oneof![5 => 0x1000_usize..0x1020, 1 => Just(usize::MAX - 8)];
    prop_oneof![
        3 => (address, prop_oneof![4 => 0_u64..32, 1 => number()]).prop_map(|(address, len)| Step::Add { address, len }),
        5 => (which(), number(), number()).prop_map(|(which, offset, len)| Step::Pin { which, offset, len }),
        2 => (which(), 0_usize..192).prop_map(|(which, bit)| Step::Forge { which, bit }),
        3 => which().prop_map(|which| Step::Unpin { which }),
        2 => which().prop_map(|which| Step::Close { which }),
        2 => which().prop_map(|which| Step::Remove { which }),
    ]
}

fn authenticator(number: usize) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut registry = Registry::default();
        let mut all: Vec<Known> = Vec::new();
        for step in steps {
            if let Step::Add { address, len } = step {
                let region = Region { address, len, location: Location::HOST };
                let wraps = (address as u64).checked_add(len).is_none();
                let name = registry.add(region, authenticator(all.len()));
                prop_assert_eq!(name.is_none(), wraps);
                if let Some(name) = name {
                    prop_assert!(all.iter().all(|known| known.name != name));
                    all.push(Known { name, region, pins: Vec::new(), closed: false, removed: false });
                }
                continue;
            }
            let (Step::Pin { which, .. } | Step::Forge { which, .. } | Step::Unpin { which } | Step::Close { which }
                | Step::Remove { which }) = &step else { continue };
            if all.is_empty() {
                continue;
            }
            let which = which.index(all.len());
            let known = &mut all[which];
            match step {
                Step::Pin { offset, len, .. } => {
                    let pin = registry.pin(&Span { name: known.name, offset, len });
                    let end = u128::from(offset) + u128::from(len);
                    if known.closed {
                        prop_assert_eq!(pin, Err(Refusal::Deregistered));
                    } else if end > u128::from(known.region.len) {
                        prop_assert_eq!(pin, Err(Refusal::OutOfRange));
                    } else {
                        let pin = pin.unwrap();
                        prop_assert_eq!(pin.address as u128, known.region.address as u128 + u128::from(offset));
                        prop_assert_eq!(pin.len, len);
                        known.pins.push(pin);
                    }
                }
                Step::Forge { bit, .. } => {
                    let mut name = known.name;
                    zerocopy::IntoBytes::as_mut_bytes(&mut name)[bit / 8] ^= 1 << (bit % 8);
                    let pin = registry.pin(&Span { name, offset: 0, len: 0 });
                    prop_assert!(matches!(pin, Err(Refusal::UnknownKey | Refusal::Deregistered)), "{:?}", pin);
                }
                Step::Unpin { .. } => {
                    if let Some(pin) = known.pins.pop() {
                        registry.unpin(pin);
                    }
                }
                Step::Close { .. } => {
                    registry.close(&known.name);
                    known.closed = true;
                }
                Step::Remove { .. } => {
                    let removed = registry.remove(&known.name);
                    prop_assert_eq!(removed, known.removed || (known.closed && known.pins.is_empty()));
                    known.removed |= removed;
                }
                Step::Add { .. } => {}
            }
        }
    }
}

#[test]
fn ten_thousand_registrations_of_one_buffer_end_in_reverse_order() {
    let mut registry = Registry::default();
    let region = Region { address: 0x1000, len: 64, location: Location::HOST };
    for round in 0..2 {
        let names: Vec<Name> = (0..10_000).filter_map(|number| registry.add(region, authenticator(number))).collect();
        assert_eq!(names.len(), 10_000);
        for name in names.iter().rev() {
            let pin = registry.pin(&Span { name: *name, offset: 0, len: 64 }).unwrap();
            registry.close(name);
            assert!(!registry.remove(name));
            registry.unpin(pin);
            assert!(registry.remove(name));
        }
        // The second round uses the places of the first.
        assert_eq!(registry.slots.len(), 10_000, "round {round}");
        assert_eq!(registry.pin(&Span { name: names[0], offset: 0, len: 0 }), Err(Refusal::Deregistered));
    }
    assert_eq!(registry.pin(&Span { name: Name::default(), offset: 0, len: 0 }), Err(Refusal::UnknownKey));
}
