//! Tests of the caller's exposures.

use proptest::prelude::*;
use zerocopy::little_endian::U32;

use super::*;

impl Reached for u32 {
    fn close(&self) {}

    fn is_over(&self) -> bool {
        true
    }
}

fn name(slot: u32, generation: u32, authenticator: u8) -> Name {
    Name { slot: U32::new(slot), generation: U32::new(generation), authenticator: [authenticator; 16] }
}

fn span(name: Name, offset: u64, len: u64) -> Span {
    Span { name, offset, len }
}

#[test]
fn an_exposure_is_asked_for_once_and_used_until_it_is_revoked() {
    let mut exposures = Exposures::default();
    let (key, forged) = (name(3, 1, 7), name(3, 1, 8));
    let ticket = Ticket::from(&key);
    assert_eq!(exposures.granted(ticket, Granted::Exposed { exposed: 5, len: 100 }), None, "nobody asked");
    assert_eq!(exposures.begin(&span(key, 0, 10)), Begin::Ask);
    assert_eq!(exposures.begin(&span(key, 0, 10)), Begin::Owner);
    assert_eq!(exposures.granted(ticket, Granted::Exposed { exposed: 5, len: 100 }), Some(false));
    assert_eq!(exposures.begin(&span(key, 90, 10)), Begin::Use(Arc::new(5)));
    // What the owner alone can refuse goes to the owner.
    for wrong in [span(forged, 0, 1), span(key, 91, 10), span(key, u64::MAX, 2), span(name(3, 2, 7), 0, 1)] {
        assert_eq!(exposures.begin(&wrong), Begin::Owner);
        assert!(!exposures.covers(&wrong));
    }
    assert!(exposures.covers(&span(key, 92, 8)));
    assert!(!exposures.revoke(ticket), "an access is under way");
    assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Owner);
    assert!(!exposures.covers(&span(key, 0, 1)));
    assert!(exposures.end(ticket));
    assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Owner, "the owner has not been told yet");
    exposures.released(ticket);
    assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Ask);
    assert_eq!(exposures.granted(ticket, Granted::Refused), Some(false));
    assert!(!exposures.is_open());
}

#[test]
fn an_answer_after_the_end_is_released_at_once() {
    let mut exposures = Exposures::default();
    let key = name(0, 1, 0);
    assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Ask);
    assert_eq!(exposures.close(), []);
    assert!(exposures.is_open());
    assert_eq!(exposures.granted(Ticket::from(&key), Granted::Exposed { exposed: 0, len: 1 }), Some(true));
    exposures.released(Ticket::from(&key));
    assert!(!exposures.is_open());
    assert_eq!(exposures.begin(&span(key, 0, 1)), Begin::Owner);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(u32),
    End(u32),
    Grant(u32),
    Revoke(u32),
    Told(u32),
    Close,
}

proptest! {
    /// The owner is told exactly once for each exposure, with no use under way, and no use begins afterwards.
    #[test]
    fn nothing_is_used_after_its_release(steps in prop::collection::vec(prop_oneof![
        6 => (0..3_u32).prop_map(Step::Begin),
        5 => (0..3_u32).prop_map(Step::End),
        4 => (0..3_u32).prop_map(Step::Grant),
        3 => (0..3_u32).prop_map(Step::Revoke),
        3 => (0..3_u32).prop_map(Step::Told),
        1 => Just(Step::Close),
    ], 0..120)) {
        #[derive(Clone, Copy, Default, PartialEq, Debug)]
        struct Model { asked: bool, held: bool, revoked: bool, uses: u32, releasing: bool }
        let mut exposures = Exposures::<u32>::default();
        let (mut model, mut closed) = ([Model::default(); 3], false);
        for step in steps {
            match step {
                Step::Begin(slot) => {
                    let it = &mut model[slot as usize];
                    let expected = match (closed, *it) {
                        (false, Model { held: true, revoked: false, .. }) => Begin::Use(Arc::new(slot)),
                        (false, Model { asked: false, held: false, releasing: false, .. }) => Begin::Ask,
                        _ => Begin::Owner,
                    };
                    let begun = exposures.begin(&span(name(slot, 1, 0), 0, 8));
                    it.uses += u32::from(matches!(begun, Begin::Use(_)));
                    it.asked |= begun == Begin::Ask;
                    prop_assert_eq!(begun, expected);
                }
                Step::End(slot) => {
                    let it = &mut model[slot as usize];
                    if it.uses > 0 {
                        it.uses -= 1;
                        let tell = exposures.end(Ticket { slot, generation: 1 });
                        prop_assert_eq!(tell, it.revoked && it.uses == 0);
                        if tell {
                            *it = Model { releasing: true, ..Model::default() };
                        }
                    }
                }
                Step::Grant(slot) => {
                    let it = &mut model[slot as usize];
                    let exposed = Granted::Exposed { exposed: slot, len: 8 };
                    let granted = exposures.granted(Ticket { slot, generation: 1 }, exposed);
                    prop_assert_eq!(granted, it.asked.then_some(closed));
                    if it.asked {
                        *it = Model { held: !closed, releasing: closed, ..Model::default() };
                    }
                }
                Step::Revoke(slot) => {
                    let it = &mut model[slot as usize];
                    let tell = exposures.revoke(Ticket { slot, generation: 1 });
                    prop_assert_eq!(tell, it.held && it.uses == 0);
                    it.revoked |= it.held;
                    if tell {
                        *it = Model { releasing: true, ..Model::default() };
                    }
                }
                Step::Told(slot) => {
                    let it = &mut model[slot as usize];
                    exposures.released(Ticket { slot, generation: 1 });
                    if it.releasing {
                        *it = Model::default();
                    }
                }
                Step::Close => {
                    closed = true;
                    let mut told: Vec<u32> = exposures.close().iter().map(|ticket| ticket.slot).collect();
                    told.sort_unstable();
                    let idle = |it: &Model| it.held && it.uses == 0;
                    let expected: Vec<u32> = (0..3).filter(|slot| idle(&model[*slot as usize])).collect();
                    prop_assert_eq!(told, expected);
                    for it in &mut model {
                        it.revoked |= it.held;
                        if idle(it) {
                            *it = Model { releasing: true, ..Model::default() };
                        }
                    }
                }
            }
            let open = model.iter().any(|it| *it != Model::default());
            prop_assert_eq!(exposures.is_open(), open);
        }
    }
}

#[test]
fn a_caller_that_wants_memory_waits_for_the_answer() {
    let mut exposures = Exposures::default();
    let (key, later) = (name(3, 1, 7), name(3, 2, 9));
    let ticket = Ticket::from(&key);
    assert_eq!(exposures.want(&key), Wanted::Unknown);
    assert_eq!(exposures.ask(&key), Begin::Ask);
    assert_eq!(exposures.want(&key), Wanted::Asked);
    assert_eq!(exposures.granted(ticket, Granted::Refused), Some(false));
    assert_eq!(exposures.want(&key), Wanted::Unknown, "it may ask again");
    assert_eq!(exposures.ask(&key), Begin::Ask);
    assert_eq!(exposures.granted(ticket, Granted::Exposed { exposed: 5, len: 100 }), Some(false));
    assert_eq!(exposures.want(&key), Wanted::Use(Arc::new(5), 100));
    assert_eq!(exposures.want(&later), Wanted::Ending, "another key of the slot");
    assert_eq!(exposures.held(&span(key, 92, 8)), Some(&Arc::new(5)));
    assert_eq!(exposures.held(&span(key, 93, 8)), None);
    assert_eq!(exposures.held(&span(name(3, 1, 8), 0, 8)), None);
    assert!(!exposures.revoke(ticket), "a use is under way");
    assert_eq!(exposures.held(&span(key, 0, 8)), None);
    assert_eq!(exposures.want(&key), Wanted::Ending);
    assert!(exposures.end(ticket));
    assert_eq!(exposures.want(&key), Wanted::Ending);
    assert_eq!(exposures.want(&later), Wanted::Asked, "until the owner was told");
    exposures.released(ticket);
    assert_eq!(exposures.want(&later), Wanted::Unknown);
    assert_eq!(exposures.ask(&later), Begin::Ask);
    assert_eq!(exposures.granted(Ticket::from(&later), Granted::Never), Some(false));
    assert_eq!(exposures.want(&later), Wanted::Never);
    assert_eq!(exposures.close(), []);
    assert_eq!(exposures.want(&key), Wanted::Ending);
}
