//! Programs that post active messages, as jobs of several processes.

mod device;
mod ends;
mod messages;
mod waiting;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::faults;
use crate::support::{Role, Test, finish, role_job, transports};

pub(crate) const TESTS: &[Test] = &[
    ("active::data_of_every_size_arrives", || every_transport("am_sizes", 2)),
    ("active::handlers_forward_messages_around_a_ring", || every_transport("am_ring", 4)),
    ("active::a_flood_with_answers_ends", || every_transport("am_flood", 4)),
    ("active::threads_post_at_once", || every_transport("am_threads", 2)),
    ("active::data_lands_in_host_and_device_memory", device::every_pairing),
    ("active::mistakes_are_errors_and_panics_end_their_handler", || every_transport("am_mistakes", 2)),
    ("active::a_killed_peer_fails_posts_and_landings", || faults::every_transport("am_dies")),
    ("active::leaving_waits_for_posts", || every_transport("am_leaves", 2)),
    ("active::forked_children_post_nothing", || every_transport("am_forks", 2)),
    ("active::the_progress_thread_calls_handlers", || every_transport("am_progress_thread", 2)),
    ("active::messages_wake_ranks_that_sleep", || every_transport("am_sleepers", 2)),
];

pub(crate) const ROLES: &[Role] = &[
    ("am_sizes", messages::sizes),
    ("am_ring", messages::ring),
    ("am_flood", messages::flood),
    ("am_threads", messages::threads),
    ("am_device", device::pairings),
    ("am_mistakes", ends::mistakes),
    ("am_dies", ends::dies),
    ("am_leaves", ends::leaves),
    ("am_forks", ends::forks),
    ("am_progress_thread", waiting::progress_thread),
    ("am_sleepers", waiting::sleepers),
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

/// Returns the content of a message.
fn content(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed as u8).collect()
}

/// What handlers found: a number of messages that were right, and a description of each that was not.
#[derive(Clone, Default)]
struct Findings {
    right: Arc<AtomicUsize>,
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Findings {
    /// Notes a check. `what` describes it.
    fn note(&self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.wrong.lock().push(what());
        }
        self.right.fetch_add(usize::from(right), Ordering::Release);
    }

    fn count(&self) -> usize {
        self.right.load(Ordering::Acquire) + self.wrong.lock().len()
    }

    fn check(&self) -> Outcome {
        let wrong = self.wrong.lock();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
    }
}
