//! The caller's side: the operations on other processes' registered memory.
//!
//! Each target has a lane: its window of operations, and a watch that ends the operations when the target dies.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ahash::RandomState;
use cableway_base::Rank;
use parking_lot::{Mutex, RwLock};

use super::exposure_wire::Ways;
use super::exposures::Exposures;
use super::operation::Operation;
use super::watch::watch;
use super::window::Window;
use super::wire::Answer;
use crate::am::{Arrival, Poster};
use crate::error::Error;
use crate::wire::Malformed;

/// The operations of a process.
pub(super) struct Caller {
    pub(super) poster: Poster,
    lanes: RwLock<HashMap<Rank, Arc<Lane>, RandomState>>,
}

/// The operations to one target.
#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<State>,
    /// The target's memory that this process reaches directly. Locked after no other lock.
    pub(super) exposures: Mutex<Exposures<Ways>>,
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
}

impl Caller {
    pub(super) fn new(poster: Poster) -> Self {
        Caller { poster, lanes: RwLock::default() }
    }

    /// Adds an operation, which `make` makes from its number, and starts it unless a fence holds it.
    ///
    /// # Errors
    /// The target is gone. Nothing was made.
    pub(super) fn issue(self: &Arc<Self>, to: Rank, make: impl FnOnce(u64) -> Operation) -> Result<(), Error> {
        let lane = self.lane(to)?;
        let (operation, now) = {
            let mut state = lane.state.lock();
            if let Some(error) = &state.lost {
                return Err(error.clone());
            }
            let operation = Arc::new(make(state.window.next_number()));
            let now = state.window.add(operation.clone());
            (operation, now)
        };
        if now {
            operation.start(self);
        }
        Ok(())
    }

    /// Returns the lane to a target, and begins to watch the target if the lane is new.
    fn lane(self: &Arc<Self>, to: Rank) -> Result<Arc<Lane>, Error> {
        if let Some(lane) = self.known(to) {
            return Ok(lane);
        }
        let lane = {
            let mut lanes = self.lanes.write();
            if let Some(lane) = lanes.get(&to) {
                return Ok(lane.clone());
            }
            let lane = Arc::<Lane>::default();
            lanes.insert(to, lane.clone());
            lane
        };
        let me = Arc::downgrade(self);
        watch(&self.poster, to, move |error| {
            if let Some(caller) = me.upgrade() {
                caller.lose(to, &error);
            }
        })
        .inspect_err(|error| self.lose(to, error))?;
        Ok(lane)
    }

    pub(super) fn known(&self, to: Rank) -> Option<Arc<Lane>> {
        self.lanes.read().get(&to).cloned()
    }

    /// Returns why a target answers no more. Watches it from now on.
    pub(super) fn check(self: &Arc<Self>, target: Rank) -> Result<(), Error> {
        self.lane(target)?.state.lock().lost.clone().map_or(Ok(()), Err)
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
        {
            let mut state = lane.state.lock();
            let ready = state.window.end(number);
            state.ready.extend(ready);
            if state.ready.is_empty() || std::mem::replace(&mut state.starting, true) {
                return;
            }
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
        let ending = {
            let mut state = lane.state.lock();
            state.lost.get_or_insert_with(|| error.clone());
            state.ready.clear();
            state.window.clear()
        };
        lane.exposures.lock().clear();
        for operation in ending {
            operation.fail(self, error.clone());
        }
    }

    /// Orders later operations to `to`, or to every target, after all earlier ones.
    pub(super) fn fence(&self, to: Option<Rank>) {
        for (_, lane) in self.chosen(to) {
            lane.state.lock().window.fence();
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
        let lanes = self.lanes.read();
        let chosen = lanes.iter().filter(|(rank, _)| to.is_none_or(|to| to == **rank));
        chosen.map(|(rank, lane)| (*rank, lane.clone())).collect()
    }
}
