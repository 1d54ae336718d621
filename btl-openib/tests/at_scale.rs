//! Simulates many processes that connect at once, like `benches/openib/ten_thousand_peers`, in smaller numbers.

#[path = "../../benches/openib/ten_thousand_peers/connecting.rs"]
mod connecting;
#[path = "../../benches/openib/ten_thousand_peers/random.rs"]
mod random;
#[path = "../../benches/openib/ten_thousand_peers/world.rs"]
mod world;

use connecting::simulate;
use world::{Outcome, Pattern, World};

fn all_are_connected(processes: u32, pattern: Pattern, pairs: u64, world: &World) -> Outcome {
    let outcome = simulate(processes, pattern, world, 1);
    assert_eq!((outcome.connections, outcome.given_up), (pairs, 0), "{pattern:?}: {outcome:?}");
    outcome
}

#[test]
fn few_connections_need_few_datagrams() {
    let outcome = all_are_connected(1000, Pattern::Neighbours, 3000, &World::usual());
    assert_eq!(outcome.most_queue_pairs, 6);
    assert!(outcome.hellos <= 4 * outcome.connections, "{outcome:?}");
}

#[test]
fn a_burst_of_all_to_all_does_not_become_a_storm() {
    for pattern in [Pattern::All, Pattern::AllFromTheFirst] {
        let outcome = all_are_connected(300, pattern, 300 * 299 / 2, &World::usual());
        assert_eq!(outcome.most_queue_pairs, 299, "one for each peer");
        assert!(outcome.hellos <= 5 * outcome.connections, "{outcome:?}");
    }
}

/// That process makes three thousand queue pairs a second. Meanwhile no peer may count it as dead.
#[test]
fn ten_thousand_peers_connect_to_one_process() {
    let outcome = all_are_connected(10_000, Pattern::Master, 9999, &World::usual());
    let busy = 9999 * (World::usual().create + World::usual().connect);
    assert!(outcome.last < busy * 3 / 2, "the device needs {busy:?}: {outcome:?}");
    assert!(outcome.longest_queue < 10_000, "one datagram waits for each peer: {outcome:?}");
}

#[test]
fn all_connect_on_a_network_that_loses_a_fifth() {
    let world = World { lost_per_million: 200_000, ..World::usual() };
    for (pattern, pairs) in [(Pattern::Neighbours, 600), (Pattern::Master, 199), (Pattern::All, 200 * 199 / 2)] {
        let outcome = all_are_connected(200, pattern, pairs, &world);
        assert!(outcome.lost * 4 < outcome.hellos && outcome.resent != 0, "{outcome:?}");
    }
}

#[test]
fn equal_seeds_give_equal_outcomes() {
    let of = |seed| format!("{:?}", simulate(100, Pattern::AllFromTheFirst, &World::usual(), seed));
    assert_eq!(of(7), of(7));
    assert_ne!(of(7), of(8));
}
