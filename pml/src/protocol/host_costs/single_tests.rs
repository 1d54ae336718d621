//! Tests of single messages, which follow each other with pauses.

use super::tests::{LEN, REST, TRIALS, nothing, share};
use super::*;

/// Carries messages, with these microseconds by a way after another one. Returns the ways taken.
fn carry(messages: usize, reach: impl Fn(usize) -> Reach, micros: impl Fn(Way, Way) -> u64) -> Vec<Way> {
    let (mut costs, mut now) = (HostCosts::new(TRIALS, None, &nothing()), Instant::now());
    let mut before = Way::Streamed;
    (0..messages)
        .map(|number| {
            now += REST;
            let expected = costs.expect(LEN, reach(number), now);
            let way = expected.way();
            costs.begin(LEN, way, expected, now);
            now += Duration::from_micros(micros(way, before));
            costs.end(LEN, false, now, &nothing());
            before = way;
            way
        })
        .collect()
}

#[test]
fn the_change_of_the_way_is_not_timed() {
    let micros = |way, before| match (way, before) {
        (Way::Get, Way::Get) => 10,
        (Way::Get, _) => 40,
        (Way::Cached, _) => 15,
        _ => 20,
    };
    let taken = carry(2000, |_| Reach::Get, micros);
    assert!(share(&taken[100..], Way::Get) > 0.95, "{}", share(&taken[100..], Way::Get));
}

/// The sender's buffer is contiguous for every other message only, so the receiver cannot fetch the others.
#[test]
fn ways_that_alternate_are_timed() {
    let reach = |number| if number % 2 == 0 { Reach::Get } else { Reach::Nothing };
    let taken = carry(2000, reach, |way, _| if way == Way::Cached { 10 } else { 30 });
    assert!(share(&taken[200..], Way::Cached) > 0.95, "{}", share(&taken[200..], Way::Cached));
}
