use super::*;

pub(super) const TRIALS: u32 = 3;
pub(super) const LEN: u64 = 65536;
/// The ways of a receiver that can fetch, from a sender that cannot store.
const FETCHED: [Way; 3] = [Way::Streamed, Way::Get, Way::Cached];
/// The pause before a message or a window, which ends a train.
pub(super) const REST: Duration = Duration::from_millis(1);

/// Carries bursts of `window` messages that take these microseconds each by each way. Returns the ways taken.
fn carry(
    costs: &mut HostCosts,
    now: &mut Instant,
    (bursts, window): (usize, usize),
    micros: impl Fn(Way) -> u64,
) -> Vec<Way> {
    let mut taken = Vec::new();
    for _ in 0..bursts {
        let mut ways = Vec::new();
        *now += REST;
        for _ in 0..window {
            let expected = costs.expect(LEN, Reach::Get, *now);
            ways.push(expected.way());
            costs.begin(LEN, expected.way(), expected, *now);
        }
        for way in &ways {
            *now += Duration::from_micros(micros(*way));
            costs.end(LEN, false, *now, &nothing());
        }
        taken.extend(ways);
    }
    taken
}

/// Carries a window of messages, each of which ends before the next one begins, and takes these microseconds by its way
/// after that of the message before. Returns the ways taken.
fn window(
    costs: &mut HostCosts,
    now: &mut Instant,
    messages: usize,
    micros: impl Fn(Way, Option<Way>) -> u64,
) -> Vec<Way> {
    let mut taken = Vec::new();
    *now += REST;
    for _ in 0..messages {
        let expected = costs.expect(LEN, Reach::Both, *now);
        let way = expected.way();
        costs.begin(LEN, way, expected, *now);
        *now += Duration::from_micros(micros(way, taken.last().copied()));
        costs.end(LEN, false, *now, &nothing());
        *now += Duration::from_nanos(200);
        taken.push(way);
    }
    taken
}

/// Carries a message that takes these microseconds without a request.
fn follow(costs: &mut HostCosts, now: &mut Instant, micros: u64, kept: &Kept) {
    *now += REST;
    costs.begin(LEN, Way::Unasked, HostCosts::expect_unasked(Reach::Get), *now);
    *now += Duration::from_micros(micros);
    costs.end(LEN, false, *now, kept);
}

/// Requests a message that takes 10 microseconds by GET and 20 by other ways. Returns how many of the next ones may come
/// without a request.
fn request(costs: &mut HostCosts, now: &mut Instant) -> u8 {
    *now += REST;
    let expected = costs.expect(LEN, Reach::Get, *now);
    let permitted = costs.begin(LEN, expected.way(), expected, *now);
    *now += Duration::from_micros(if expected.way() == Way::Get { 10 } else { 20 });
    costs.end(LEN, false, *now, &nothing());
    permitted
}

/// Keeps no costs.
pub(super) fn nothing() -> Kept {
    let mut parameters = cableway_base::Parameters::default();
    parameters.assign_internal("pml_host_trials=0").unwrap();
    Kept::new(&parameters)
}

pub(super) fn share(taken: &[Way], way: Way) -> f64 {
    taken.iter().filter(|other| **other == way).count() as f64 / taken.len() as f64
}

#[test]
fn the_fastest_way_is_found_and_followed_when_it_changes() {
    for (fastest, window) in FETCHED.into_iter().flat_map(|way| [(way, 1), (way, 64)]) {
        let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
        // The first message by a way is not timed.
        let trials = if window == 1 { 12 } else { 6 };
        let first = carry(&mut costs, &mut now, (trials, window), |_| 10);
        assert!(FETCHED.iter().all(|way| share(&first, *way) > 0.3), "{first:?}");
        carry(&mut costs, &mut now, (200, window), |way| if way == fastest { 10 } else { 15 });
        let later = carry(&mut costs, &mut now, (1000, window), |way| if way == fastest { 10 } else { 15 });
        assert!(share(&later, fastest) > 0.95, "{fastest:?}: {}", share(&later, fastest));
        let other = FETCHED[(fastest as usize + 1) % 3];
        carry(&mut costs, &mut now, (500, window), |way| if way == other { 10 } else { 15 });
        let later = carry(&mut costs, &mut now, (1000, window), |way| if way == other { 10 } else { 15 });
        assert!(share(&later, other) > 0.95, "{other:?}: {}", share(&later, other));
    }
}

#[test]
fn a_way_that_is_far_slower_is_tried_rarely() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    carry(&mut costs, &mut now, (100, 1), |way| if way == Way::Get { 10 } else { 1000 });
    let later = carry(&mut costs, &mut now, (10_000, 1), |way| if way == Way::Get { 10 } else { 1000 });
    assert!(share(&later, Way::Get) > 0.995, "{}", share(&later, Way::Get));
}

#[test]
fn sizes_have_costs_of_their_own() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    carry(&mut costs, &mut now, (100, 1), |way| if way == Way::Get { 10 } else { 20 });
    now += REST;
    assert_eq!(costs.expect(LEN, Reach::Get, now).way(), Way::Get);
    let unknown = costs.expect(1 << 20, Reach::Get, now);
    assert_eq!((unknown.fragments, unknown.stream), (Duration::ZERO, true));
    assert_eq!((class_of(0), class_of(32767), class_of(32768), class_of(u64::MAX)), (0, 0, 1, CLASSES - 1));
}

#[test]
fn a_way_that_is_clearly_slower_for_near_sizes_is_not_tried_at_first() {
    let tried = |len: u64| {
        let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
        carry(&mut costs, &mut now, (100, 1), |way| [40, 10, 12][way as usize]);
        let mut ways: Vec<_> = (0..9)
            .map(|_| {
                now += REST;
                let expected = costs.expect(len, Reach::Get, now);
                costs.begin(len, expected.way(), expected, now);
                now += Duration::from_nanos(10_000 * len / LEN);
                costs.end(len, false, now, &nothing());
                expected.way()
            })
            .collect();
        ways.dedup();
        ways
    };
    assert_eq!(tried(2 * LEN), [Way::Get, Way::Cached]);
    assert_eq!(tried(LEN / 4), [Way::Get, Way::Cached]);
    assert_eq!(tried(32 * LEN), [Way::Streamed, Way::Get, Way::Cached]);
}

#[test]
fn a_way_that_was_not_tried_at_first_is_found_later() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    carry(&mut costs, &mut now, (100, 1), |way| if way == Way::Get { 10 } else { 40 });
    let here = LEN;
    costs.sets[Pattern::Single as usize].swap(class_of(here), class_of(2 * here));
    now += REST;
    assert_eq!(costs.expect(here, Reach::Get, now).way(), Way::Get);
    let later = carry(&mut costs, &mut now, (2000, 1), |way| if way == Way::Cached { 5 } else { 10 });
    assert!(share(&later[1000..], Way::Cached) > 0.95, "{}", share(&later[1000..], Way::Cached));
}

#[test]
fn two_windows_are_enough_for_a_trial() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let taken = carry(&mut costs, &mut now, (6, 64), |_| 10);
    assert!(FETCHED.iter().all(|way| share(&taken, *way) == 1.0 / 3.0), "{taken:?}");
    assert!(costs.sets[Pattern::Window as usize][class_of(LEN)].measured(Way::Cached, TRIALS, Reach::Get));
}

#[test]
fn a_stream_without_pauses_is_timed_too() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let mut under_way = std::collections::VecDeque::new();
    let mut taken = Vec::new();
    for message in 0..20_000 {
        let expected = costs.expect(LEN, Reach::Get, now);
        costs.begin(LEN, expected.way(), expected, now);
        under_way.push_back(expected.way());
        taken.push(expected.way());
        if message >= 16 {
            let way = under_way.pop_front().unwrap();
            now += Duration::from_micros(if way == Way::Get { 10 } else { 13 });
            costs.end(LEN, false, now, &nothing());
        }
    }
    assert!(share(&taken[10_000..], Way::Get) > 0.9, "{}", share(&taken[10_000..], Way::Get));
}

#[test]
fn bursts_of_several_sizes_or_with_failures_are_not_timed() {
    let (mut costs, now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    for failed in [false, true] {
        for len in [LEN, if failed { LEN } else { 1 << 20 }] {
            let expected = costs.expect(len, Reach::Get, now);
            costs.begin(len, expected.way(), expected, now);
        }
        for _ in 0..2 {
            costs.end(LEN, failed, now + Duration::from_secs(1), &nothing());
        }
        assert!(costs.sets.iter().flatten().all(|class| class.costs.iter().all(|cost| cost.times == 0)));
    }
}

#[test]
fn costs_that_were_kept_are_not_measured_again() {
    let folder = std::env::temp_dir().join(format!("cableway-host-costs-again-{}", std::process::id()));
    let mut parameters = cableway_base::Parameters::default();
    parameters.assign_internal(&format!("costs_folder={}", folder.display())).unwrap();
    let at = Distance::SharedL3;
    let first = Kept::new(&parameters);
    let (mut costs, mut now) = (HostCosts::new(TRIALS, Some(at), &first), Instant::now());
    for _ in 0..12 {
        now += REST;
        let expected = costs.expect(LEN, Reach::Get, now);
        costs.begin(LEN, expected.way(), expected, now);
        now += Duration::from_micros(if expected.way() == Way::Get { 10 } else { 20 });
        costs.end(LEN, false, now, &first);
    }
    for _ in 0..8 {
        follow(&mut costs, &mut now, 30, &first);
    }
    first.save();
    let second = Kept::new(&parameters);
    let mut costs = HostCosts::new(TRIALS, Some(at), &second);
    let taken = carry(&mut costs, &mut now, (60, 1), |_| 10);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(share(&taken, Way::Get), 1.0);
    assert_eq!(costs.expect(LEN * 16, Reach::Get, now).way(), Way::Streamed, "another size is tried");
    assert!(!caches_at(at, &second) && !caches_at(Distance::Node, &second));
}

#[test]
fn messages_without_a_request_are_permitted_if_they_are_fastest() {
    for (micros, permitted) in [(5, 64), (15, 0)] {
        let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
        assert!((0..12).all(|_| request(&mut costs, &mut now) == 0), "the ways to request come first");
        assert_eq!(request(&mut costs, &mut now), 4, "then it is tried");
        for _ in 0..4 {
            follow(&mut costs, &mut now, micros, &nothing());
        }
        for round in 0..3 {
            assert_eq!(request(&mut costs, &mut now), permitted, "{micros} us, round {round}");
        }
    }
}

#[test]
fn a_slower_way_without_a_request_is_tried_rarely_and_found_when_it_is_faster() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let mut follows = 0;
    let mut carry = |messages: usize, micros: u64, follows: &mut u32| {
        let mut permitted = 0;
        let before = *follows;
        for _ in 0..messages {
            if permitted == 0 {
                permitted = request(&mut costs, &mut now);
            } else {
                permitted -= 1;
                *follows += 1;
                follow(&mut costs, &mut now, micros, &nothing());
            }
        }
        f64::from(*follows - before) / messages as f64
    };
    carry(100, 15, &mut follows);
    assert!(carry(2000, 15, &mut follows) < 0.02);
    // Trials are 1024 messages apart by now, and each moves the time by half.
    carry(5 * 1024, 5, &mut follows);
    assert!(carry(2000, 5, &mut follows) > 0.9);
}

/// In a window, all messages that are left come through the caches when one asks for a permit.
#[test]
fn permits_are_asked_for_rarely_in_windows() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let (mut taken, mut permitted) = (Vec::new(), 0);
    for _ in 0..600 {
        now += REST;
        let mut left = 64;
        while left != 0 {
            let expected = match permitted {
                0 => costs.expect(LEN, Reach::Get, now),
                _ => HostCosts::expect_unasked(Reach::Get),
            };
            let way = expected.way();
            let messages = if matches!(way, Way::Get | Way::Unasked) { 1 } else { left };
            permitted = u8::saturating_sub(permitted, 1);
            for _ in 0..messages {
                permitted = permitted.max(costs.begin(LEN, way, expected, now));
            }
            for _ in 0..messages {
                now += Duration::from_micros(if way == Way::Get { 10 } else { 13 });
                costs.end(LEN, false, now, &nothing());
            }
            now += Duration::from_nanos(200);
            taken.extend(std::iter::repeat_n(way, messages));
            left -= messages;
        }
    }
    let late = &taken[100 * 64..];
    assert!(share(late, Way::Get) > 0.97, "{}", share(late, Way::Get));
}

#[test]
fn permits_that_nobody_uses_are_given_rarely() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let given = (0..2000).filter(|_| request(&mut costs, &mut now) != 0).count();
    // Three trials, and what comes through the caches now and then in any case.
    assert!((3..40).contains(&given), "{given}");
    let long = SMALLEST << UNASKED_CLASSES;
    for _ in 0..50 {
        now += REST;
        let expected = costs.expect(long, Reach::Get, now);
        assert_eq!(costs.begin(long, expected.way(), expected, now), 0, "too long to come without a request");
        now += Duration::from_micros(10);
        costs.end(long, false, now, &nothing());
    }
}

#[test]
fn windows_have_costs_of_their_own() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let mut window = |costs: &mut HostCosts, messages, best| {
        window(costs, &mut now, messages, |way, _| if way == best { 10 } else { 15 })
    };
    for _ in 0..300 {
        window(&mut costs, 1, Way::Get);
        window(&mut costs, 1, Way::Get);
        window(&mut costs, 64, Way::Halves);
    }
    let ways: Vec<Way> = (0..100).flat_map(|_| window(&mut costs, 64, Way::Halves)).collect();
    assert!(share(&ways, Way::Halves) > 0.95, "{}", share(&ways, Way::Halves));
    window(&mut costs, 1, Way::Get);
    let ways: Vec<Way> = (0..100).flat_map(|_| window(&mut costs, 1, Way::Get)).collect();
    assert!(share(&ways, Way::Get) > 0.95, "{}", share(&ways, Way::Get));
}

/// The first message after another way takes longer, because the sender still does the work of that way.
#[test]
fn the_change_of_the_way_is_not_timed_in_windows() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let micros = |way, before| match (way, before == Some(way)) {
        (Way::Halves, true) => 10,
        (Way::Halves, false) => 40,
        _ => 15,
    };
    let taken: Vec<Way> = (0..100).flat_map(|_| window(&mut costs, &mut now, 64, micros)).collect();
    let late = &taken[20 * 64..];
    assert!(share(late, Way::Halves) > 0.95, "{}", share(late, Way::Halves));
}

/// Windows of two messages end before a run is long enough.
#[test]
fn short_windows_are_timed_too() {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let micros = |way, _| if way == Way::Get { 10 } else { 15 };
    let taken: Vec<Way> = (0..500).flat_map(|_| window(&mut costs, &mut now, 2, micros)).collect();
    assert!(share(&taken[100..], Way::Get) > 0.9, "{}", share(&taken[100..], Way::Get));
}

#[test]
fn the_sender_stores_only_where_it_can() {
    for (reach, way) in [(Reach::Both, Way::Halves), (Reach::Get, Way::Get), (Reach::Nothing, Way::Cached)] {
        let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
        let mut taken = Vec::new();
        for _ in 0..100 {
            now += REST;
            let expected = costs.expect(LEN, reach, now);
            costs.begin(LEN, expected.way(), expected, now);
            now += Duration::from_micros([40, 20, 30, 0, 10][expected.way() as usize]);
            costs.end(LEN, false, now, &nothing());
            taken.push(expected.way());
        }
        assert!(share(&taken[20..], way) > 0.95, "{reach:?}: {taken:?}");
        assert!(taken.iter().all(|way| reach.allows(*way)));
    }
}
