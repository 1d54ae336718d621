//! The caller's side: the operations on other processes' registered memory.
//!
//! Each target has a lane: its window of operations, and a watch that ends the operations when the target dies. Lanes
//! are found without a lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::Rank;
use cableway_base::lock::{Lock, Locking};
use parking_lot::Mutex;

use super::exposures::Exposures;
use super::gates::{Gates, Reach};
use super::operation::Operation;
use super::watch::watch;
use super::window::Window;
use super::wire::Answer;
use crate::am::{Arrival, Poster};
use crate::error::Error;
use crate::wire::Malformed;

/// A program that only starts operations progresses them after so many.
const OPERATIONS_PER_TURN: u64 = 64;

/// The operations of a process.
pub(super) struct Caller {
    pub(super) poster: Poster,
    /// By target.
    lanes: Box<[OnceLock<Arc<Lane>>]>,
    /// Held while shapes and the ask to which they belong are posted.
    pub(super) posting: Mutex<()>,
}

/// The operations to one target.
pub(super) struct Lane {
    /// One thread's calls, and its progress, take this without an atomic read-modify-write.
    state: Lock<State>,
    /// Operations may not be complete at once: a fence holds earlier ones, or the target is lost. Written under the lock
    /// of the state.
    ordered: AtomicBool,
    /// The target's memory that this process reaches directly. Locked after no other lock.
    pub(super) exposures: Mutex<Exposures<Reach>>,
    /// The target's memory that this process has mapped.
    pub(super) gates: Gates,
}

impl Default for Lane {
    fn default() -> Self {
        Lane {
            state: Lock::new(Locking::REAL, State::default()),
            ordered: AtomicBool::default(),
            exposures: Mutex::default(),
            gates: Gates::default(),
        }
    }
}

impl Lane {
    /// Returns whether operations may be complete at once.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        !self.ordered.load(Ordering::Acquire)
    }

    /// Changes the state.
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = act(&mut state);
        self.ordered.store(state.lost.is_some() || state.window.holds(), Ordering::Release);
        result
    }
}

#[derive(Default)]
struct State {
    window: Window<Arc<Operation>>,
    /// Operations that start now, in this order.
    ready: VecDeque<Arc<Operation>>,
    /// A thread starts them. An operation that is complete at once makes others ready, so this is a loop instead of a
    /// recursion.
    starting: bool,
    /// Why the target answers no more.
    lost: Option<Error>,
    /// Operations that are complete, for their memory.
    spare: Vec<Arc<Operation>>,
}

/// At most so many operations are kept for their memory.
const SPARE: usize = 64;

impl State {
    /// Returns an operation in memory that was used before, if nobody uses it any more.
    fn renew(&mut self, operation: Operation) -> Arc<Operation> {
        if let Some(mut spare) = self.spare.pop()
            && let Some(place) = Arc::get_mut(&mut spare)
        {
            *place = operation;
            return spare;
        }
        Arc::new(operation)
    }

    /// Keeps an operation for its memory, unless that owns more.
    fn keep(&mut self, operation: Option<Arc<Operation>>) {
        if self.spare.len() < SPARE {
            self.spare.extend(operation.filter(|operation| operation.is_plain()));
        }
    }
}

impl Caller {
    pub(super) fn new(poster: Poster) -> Self {
        let lanes = (0..poster.size()).map(|_| OnceLock::new()).collect();
        Caller { poster, lanes, posting: Mutex::default() }
    }

    /// Adds an operation, which `make` makes from its number, and starts it unless a fence holds it.
    ///
    /// # Errors
    /// The target is gone. Nothing was made.
    pub(super) fn issue(self: &Arc<Self>, to: Rank, make: impl FnOnce(u64) -> Operation) -> Result<(), Error> {
        let lane = self.lane(to)?;
        let (operation, now) = lane.with(|state| {
            if let Some(error) = &state.lost {
                return Err(error.clone());
            }
            let operation = state.renew(make(state.window.next_number()));
            let now = state.window.add(operation.clone());
            Ok((operation, now))
        })?;
        if now {
            operation.start(self);
        }
        Ok(())
    }

    /// Returns the lane to a target, and begins to watch the target if the lane is new.
    fn lane(self: &Arc<Self>, to: Rank) -> Result<&Arc<Lane>, Error> {
        let size = self.lanes.len();
        let no_such = || Error::NoSuchRank { rank: i32::try_from(to).unwrap_or(i32::MAX), size };
        let place = self.lanes.get(to as usize).ok_or_else(no_such)?;
        if let Some(lane) = place.get() {
            return Ok(lane);
        }
        let mut new = false;
        let lane = place.get_or_init(|| {
            new = true;
            Arc::default()
        });
        if !new {
            return Ok(lane);
        }
        let me = Arc::downgrade(self);
        watch(&self.poster, to, move |error| {
            if let Some(caller) = me.upgrade() {
                caller.lose(to, &error);
            }
        })
        .inspect_err(|error| self.lose(to, error))?;
        Ok(lane)
    }

    #[inline]
    pub(super) fn known(&self, to: Rank) -> Option<&Arc<Lane>> {
        self.lanes.get(to as usize)?.get()
    }

    /// Returns why a target answers no more. Watches it from now on.
    pub(super) fn check(self: &Arc<Self>, target: Rank) -> Result<(), Error> {
        let lane = self.lane(target)?;
        if lane.is_free() {
            return Ok(());
        }
        lane.state.lock().lost.clone().map_or(Ok(()), Err)
    }

    /// Returns whether the next operation to a target should make a turn of progress. If operations are under way, the
    /// program will wait for them, and copies between devices that no turn comes between start together.
    pub(super) fn is_turn_due(&self, to: Rank) -> bool {
        self.known(to).is_none_or(|lane| {
            let window = &lane.state.lock().window;
            window.is_idle() || window.next_number().is_multiple_of(OPERATIONS_PER_TURN)
        })
    }

    /// Counts an operation whose bytes this process has moved.
    pub(super) fn note_moved(&self) {
        self.poster.engine().core().counters.one_sided_direct.increment();
    }

    /// Handles an answer.
    pub(super) fn answer(self: &Arc<Self>, arrival: Arrival<'_>) -> Result<(), Malformed> {
        let (answer, from) = (Answer::parse(arrival.header())?, arrival.source());
        let asked = self.known(from).and_then(|lane| lane.state.lock().window.under_way(answer.number).cloned());
        let operation = asked.ok_or(Malformed::OneSided("an answer to an operation that is not under way"))?;
        operation.answered(self, arrival, &answer);
        Ok(())
    }

    /// Notes that an operation is complete, and starts those that waited for it.
    pub(super) fn ended(self: &Arc<Self>, to: Rank, number: u64) {
        let Some(lane) = self.known(to) else { return };
        let idle = lane.with(|state| {
            let (ended, ready) = state.window.end(number);
            state.keep(ended);
            state.ready.extend(ready);
            state.ready.is_empty() || std::mem::replace(&mut state.starting, true)
        });
        if idle {
            return;
        }
        loop {
            let next = {
                let mut state = lane.state.lock();
                let next = state.ready.pop_front();
                state.starting = next.is_some();
                next
            };
            match next {
                Some(operation) => operation.start(self),
                None => return,
            }
        }
    }

    /// Ends all operations to a target that answers no more, and refuses later ones.
    pub(super) fn lose(self: &Arc<Self>, to: Rank, error: &Error) {
        let Some(lane) = self.known(to) else { return };
        let ending = lane.with(|state| {
            state.lost.get_or_insert_with(|| error.clone());
            state.ready.clear();
            state.spare.clear();
            state.window.clear()
        });
        lane.exposures.lock().clear();
        for operation in ending {
            operation.fail(self, error.clone());
        }
    }

    /// Orders later operations to `to`, or to every target, after all earlier ones.
    pub(super) fn fence(&self, to: Option<Rank>) {
        for (_, lane) in self.chosen(to) {
            lane.with(|state| state.window.fence());
        }
    }

    /// Waits until all earlier operations to `to`, or to every target, are complete.
    pub(super) fn flush(&self, to: Option<Rank>) {
        let lanes = self.chosen(to);
        let limits: Vec<u64> = lanes.iter().map(|(_, lane)| lane.state.lock().window.next_number()).collect();
        let mut left = lanes.iter().zip(limits).peekable();
        self.poster.engine().wait_until(|| {
            while left.next_if(|((_, lane), limit)| lane.state.lock().window.is_complete_below(*limit)).is_some() {}
            left.peek().is_none()
        });
    }

    pub(super) fn chosen(&self, to: Option<Rank>) -> Vec<(Rank, Arc<Lane>)> {
        let lanes = (0..).zip(&self.lanes).filter(|(rank, _)| to.is_none_or(|to| to == *rank));
        lanes.filter_map(|(rank, lane)| Some((rank, lane.get()?.clone()))).collect()
    }
}
