//! The order of puts and of what follows them.
//!
//! Programs of LibMP rely on the order that one queue of its network card keeps. Puts to a rank end in the order of their
//! posts, so that a program waits for the last one only. A send starts after the puts to its rank that were posted before
//! it: by the host, and in the same lane.

use std::collections::HashMap;
use std::sync::LazyLock;

use cableway_pml::{Communicator, MessageWatch};
use parking_lot::Mutex;

/// Where operations start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Host,
    /// A stream of the program, by its address.
    Stream(usize),
    /// A kernel that runs.
    Kernel,
}

impl Lane {
    /// Returns whether a send of this lane follows the puts of another one. A send of a stream does not wait for a kernel,
    /// which the stream may run later.
    fn follows(self, put: Lane) -> bool {
        self == Lane::Kernel || put == Lane::Host || put == self
    }
}

/// The address of a communicator, and a rank.
type Target = (usize, i32);

/// Puts that were not over at the last look, in the order of their posts.
static PUTS: LazyLock<Mutex<HashMap<Target, Vec<(Lane, MessageWatch)>>>> = LazyLock::new(Mutex::default);

fn target(on: &Communicator, peer: i32) -> Target {
    ((&raw const *on).expose_provenance(), peer)
}

/// Notes a put that was posted.
pub(super) fn note_put(on: &Communicator, peer: i32, lane: Lane, put: MessageWatch) {
    PUTS.lock().entry(target(on, peer)).or_default().push((lane, put));
}

/// Returns the puts after which a send starts.
pub(super) fn before_send(on: &Communicator, peer: i32, lane: Lane) -> Vec<MessageWatch> {
    let mut all = PUTS.lock();
    let Some(puts) = open(&mut all, target(on, peer)) else { return Vec::new() };
    puts.iter().filter(|(other, _)| lane.follows(*other)).map(|(_, put)| put.clone()).collect()
}

/// Returns the put after which another one of the lane ends.
pub(super) fn before_put(on: &Communicator, peer: i32, lane: Lane) -> Option<MessageWatch> {
    let mut all = PUTS.lock();
    let puts = open(&mut all, target(on, peer))?;
    puts.iter().rev().find(|(other, _)| lane.follows(*other)).map(|(_, put)| put.clone())
}

/// Removes puts that are over. Returns the others.
fn open(
    all: &mut HashMap<Target, Vec<(Lane, MessageWatch)>>,
    target: Target,
) -> Option<&mut Vec<(Lane, MessageWatch)>> {
    let puts = all.get_mut(&target)?;
    puts.retain(|(_, put)| !put.is_over());
    if puts.is_empty() {
        all.remove(&target);
        return None;
    }
    all.get_mut(&target)
}
