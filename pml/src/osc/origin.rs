//! The origin's side: operations under way.
//!
//! An operation is complete when its target has answered and its buffers are not used any more. It is complete at the
//! target then, too.

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::Mutex;

use super::wire::{ASK, Answer, Ask, BLOCKS_IN_ASK, SHAPE};
use crate::am::{Arrival, Poster};
use crate::buffer::{Buffer, OwnedBuffer};
use crate::error::Error;
use crate::refusal::Refusal;
use crate::shapes::{Block, post_shapes};
use crate::wire::Malformed;

/// A function that gets an operation's error once the operation is complete.
pub type Then = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// An operation that is about to start.
pub(super) struct Operation<'a> {
    pub(super) target: u32,
    /// Its number is filled in.
    pub(super) ask: Ask,
    /// Of an element, if the ask has any.
    pub(super) blocks: Vec<Block>,
    /// The bytes of data at the target, for messages to people.
    pub(super) len: u64,
    pub(super) data: Data<'a>,
    /// Where the answer's data lands.
    pub(super) result: Option<Buffer<'a>>,
    pub(super) then: Option<Then>,
}

/// What comes with an ask.
pub(super) enum Data<'a> {
    Buffer(Buffer<'a>),
    /// Bytes of the library's.
    Owned(Vec<u8>),
}

pub(super) struct Origin {
    state: Mutex<State>,
    /// Held while the messages of an operation are posted, because the shapes before an ask belong to it.
    posting: Mutex<()>,
}

struct State {
    next_number: u64,
    under_way: HashMap<u64, UnderWay, RandomState>,
    /// For each target.
    targets: Vec<ToTarget>,
}

#[derive(Clone, Default)]
struct ToTarget {
    under_way: u64,
    /// The first error of an operation without a function to call.
    error: Option<Error>,
}

struct UnderWay {
    target: u32,
    displacement: i64,
    len: u64,
    /// The answer, and the data's way out.
    parts_left: u8,
    answered: bool,
    result: Option<OwnedBuffer>,
    error: Option<Error>,
    then: Option<Then>,
}

impl Origin {
    pub(super) fn new(size: u32) -> Self {
        let targets = vec![ToTarget::default(); size as usize];
        let state = State { next_number: 0, under_way: HashMap::default(), targets };
        Origin { state: Mutex::new(state), posting: Mutex::default() }
    }

    /// Starts an operation.
    ///
    /// # Safety
    /// Its buffers stay valid, and unwritten or exclusive to it, until it is complete.
    ///
    /// # Errors
    /// The target is gone. Nothing was started, and the function is dropped.
    pub(super) unsafe fn start(self: &Arc<Self>, poster: &Poster, mut operation: Operation<'_>) -> Result<(), Error> {
        let _posting = self.posting.lock();
        let number = self.add(&mut operation);
        operation.ask.number = number;
        let in_ask = if operation.blocks.len() <= BLOCKS_IN_ASK { &operation.blocks[..] } else { &[] };
        let header = operation.ask.to_bytes(in_ask);
        let shapes = if in_ask.is_empty() { &operation.blocks[..] } else { &[] };
        let posted = post_shapes(poster, operation.target, SHAPE, shapes).and_then(|()| {
            let origin = self.clone();
            let left = move |result: Result<(), Error>| origin.part_ended(number, result.err());
            match operation.data {
                // SAFETY: the caller's promise.
                Data::Buffer(data) => unsafe { poster.post_then(operation.target, ASK, &header, data, left) },
                Data::Owned(data) => {
                    let buffer = Buffer::bytes(data.as_ptr(), data.len() as u64);
                    let left = move |result| {
                        drop(data);
                        left(result);
                    };
                    // SAFETY: the completion owns the bytes.
                    unsafe { poster.post_then(operation.target, ASK, &header, buffer, left) }
                }
            }
        });
        if posted.is_err() {
            self.remove(number);
        }
        posted
    }

    fn add(&self, operation: &mut Operation<'_>) -> u64 {
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.targets[operation.target as usize].under_way += 1;
        let under_way = UnderWay {
            target: operation.target,
            displacement: operation.ask.displacement,
            len: operation.len,
            parts_left: 2,
            answered: false,
            result: operation.result.map(Buffer::to_owned),
            error: None,
            then: operation.then.take(),
        };
        state.under_way.insert(number, under_way);
        number
    }

    fn remove(&self, number: u64) -> Option<UnderWay> {
        let mut state = self.state.lock();
        let removed = state.under_way.remove(&number)?;
        state.targets[removed.target as usize].under_way -= 1;
        Some(removed)
    }

    /// Handles an answer.
    pub(super) fn answer(self: &Arc<Self>, arrival: Arrival<'_>) -> Result<(), Malformed> {
        let Answer { number, result } = Answer::parse(arrival.header())?;
        let into = {
            let mut state = self.state.lock();
            let under_way = state
                .under_way
                .get_mut(&number)
                .filter(|under_way| under_way.target == arrival.source() && !under_way.answered);
            let under_way = under_way.ok_or(Malformed::OneSided("an answer to an operation that is not under way"))?;
            let into = under_way.result.take();
            let expected = match (&into, result) {
                (Some(into), Ok(())) => into.borrow().len(),
                _ => 0,
            };
            if expected != arrival.len() {
                return Err(Malformed::OneSided("the data of an answer has another length than was asked for"));
            }
            under_way.answered = true;
            into.filter(|_| result.is_ok() && expected > 0)
        };
        let Some(into) = into else {
            self.part_ended(number, result.err().map(|refusal| self.refused(number, refusal)));
            return Ok(());
        };
        let origin = self.clone();
        // SAFETY: the program keeps the buffer until the operation is complete.
        unsafe { arrival.receive(into.borrow(), move |landed| origin.part_ended(number, landed.err())) };
        Ok(())
    }

    fn refused(&self, number: u64, refusal: Refusal) -> Error {
        let state = self.state.lock();
        let (rank, displacement, len) = state
            .under_way
            .get(&number)
            .map_or((0, 0, 0), |under_way| (under_way.target, under_way.displacement, under_way.len));
        Error::RefusedByWindow { rank, displacement, len, refusal }
    }

    fn part_ended(&self, number: u64, error: Option<Error>) {
        let ended = {
            let mut state = self.state.lock();
            let Some(under_way) = state.under_way.get_mut(&number) else { return };
            under_way.parts_left -= 1;
            under_way.error = under_way.error.take().or(error);
            if under_way.parts_left > 0 {
                return;
            }
            let Some(UnderWay { target, error, then, .. }) = state.under_way.remove(&number) else { return };
            let to_target = &mut state.targets[target as usize];
            match then {
                // It is called first: what waits for the target may end the program's use of the window.
                Some(then) => Some((then, error, target)),
                None => {
                    to_target.under_way -= 1;
                    to_target.error = to_target.error.take().or(error);
                    None
                }
            }
        };
        if let Some((then, error, target)) = ended {
            then(error.map_or(Ok(()), Err));
            self.state.lock().targets[target as usize].under_way -= 1;
        }
    }

    /// Returns whether all operations to a target, or to every one, are complete.
    pub(super) fn is_complete(&self, target: Option<u32>) -> bool {
        let state = self.state.lock();
        let over = |to_target: &ToTarget| to_target.under_way == 0;
        match target {
            Some(target) => state.targets.get(target as usize).is_none_or(over),
            None => state.targets.iter().all(over),
        }
    }

    /// Returns the first error of the operations to a target, or to every one, since the last call.
    pub(super) fn take_error(&self, target: Option<u32>) -> Result<(), Error> {
        let mut state = self.state.lock();
        let chosen = state.targets.iter_mut().enumerate();
        let chosen = chosen.filter(|(rank, _)| target.is_none_or(|target| target as usize == *rank));
        let mut errors = chosen.filter_map(|(_, to_target)| to_target.error.take());
        // All are taken, so that a later call does not return an old one.
        let first = errors.next();
        errors.for_each(drop);
        first.map_or(Ok(()), Err)
    }
}
