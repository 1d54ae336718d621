//! Programs that use the library, as jobs of several processes.

mod communicators;
mod messages;
mod mistakes;
mod progress;
mod requests;

use std::error::Error;

use crate::support::{Role, Test, finish, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("library::messages_of_every_mode_and_size_arrive", || every_transport("modes", 2)),
    ("library::wildcards_and_probes_match", || every_transport("wildcards", 3)),
    ("library::scopes_wait_for_their_requests", || every_transport("scopes", 2)),
    ("library::leaked_requests_are_waited_for", || every_transport("leak", 2)),
    ("library::persistent_requests_restart", || every_transport("persistent", 2)),
    ("library::communicators_are_separate", || every_transport("communicators", 4)),
    ("library::many_ranks_exchange_messages", || every_transport("all_to_all", 8)),
    ("library::threads_exchange_messages", || every_transport("threads", 2)),
    ("library::a_rank_can_send_to_itself", || drop(finish(&mut role_job(1, &[], "oneself")).assert_success())),
    ("library::errors_name_the_mistake", || every_transport("mistakes", 2)),
    ("library::the_progress_thread_moves_messages", || every_transport("progress_thread", 2)),
    ("library::large_messages_arrive", || every_transport("large", 2)),
    ("library::long_waits_sleep", || every_transport("sleeper", 2)),
    ("library::messages_wake_sleepers", || every_transport("sleepers", 2)),
];

pub(crate) const ROLES: &[Role] = &[
    ("modes", messages::modes),
    ("wildcards", messages::wildcards),
    ("scopes", requests::scopes),
    ("leak", requests::leak),
    ("persistent", requests::persistent),
    ("communicators", communicators::communicators),
    ("all_to_all", messages::all_to_all),
    ("threads", progress::threads),
    ("oneself", messages::oneself),
    ("mistakes", mistakes::mistakes),
    ("progress_thread", progress::progress_thread),
    ("large", messages::large),
    ("sleeper", progress::sleeper),
    ("sleepers", progress::sleepers),
];

type Outcome = Result<(), Box<dyn Error>>;

fn every_transport(role: &str, ranks: u32) {
    for btl in transports().iter().map(|btl| format!("btl={btl}")) {
        finish(&mut role_job(ranks, &["--set", &btl], role)).assert_success();
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}

/// Returns the content of rank `from`'s message `number`.
fn values(from: u32, number: usize, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ from << 28 ^ number as u32).collect()
}

const SIZES: [usize; 9] = [0, 1, 2, 100, 1000, 1100, 5000, 20_000, 300_000];
