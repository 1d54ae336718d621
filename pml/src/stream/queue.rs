//! What the thread of a stream has to do, and when: a state machine without clocks, threads or devices.
//!
//! A stream writes a number to a word when it gets to an operation. Where it must wait, it waits until a second word, the
//! release word, has at least the number of the wait. Numbers count the calls on the stream, so both words only grow.

use std::collections::VecDeque;

/// An operation of the engine, which a stream starts or waits for.
pub(super) trait Awaited: Clone {
    /// Returns whether the operation has ended, well or not.
    fn is_over(&self) -> bool;
}

/// The last numbers that a stream writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// For the thread.
    mark: u64,
    /// Behind calls in which the thread has no part.
    pass: u64,
}

/// The calls on one stream that are not done, in their order.
pub(super) struct Queue<O> {
    /// Operations that start when the stream has reached their number.
    starts: VecDeque<(u64, O)>,
    /// Numbers that the stream waits for, and the operations that must be over first.
    waits: VecDeque<(u64, Vec<O>)>,
    /// The last numbers that the stream will write.
    last: Written,
    /// The last number that was seen.
    reached: u64,
}

impl<O: Awaited> Queue<O> {
    /// Creates a queue of a stream that has reached `number`.
    pub(super) fn new(number: u64) -> Self {
        Queue {
            starts: VecDeque::new(),
            waits: VecDeque::new(),
            last: Written { mark: number, pass: number },
            reached: number,
        }
    }

    /// Adds an operation that starts at `number`. Numbers grow from call to call.
    pub(super) fn start_at(&mut self, number: u64, operation: O) {
        self.starts.push_back((number, operation));
        self.mark(number);
    }

    /// Adds a wait of the stream for operations.
    pub(super) fn wait_at(&mut self, number: u64, operations: Vec<O>) {
        self.waits.push_back((number, operations));
    }

    /// Notes that the stream writes `number` when it gets there.
    pub(super) fn mark(&mut self, number: u64) {
        self.last.mark = number;
    }

    /// Notes that the stream writes `number` behind a call in which the thread has no part.
    pub(super) fn pass(&mut self, number: u64) {
        self.last.pass = number;
    }

    /// Takes back the operations of the calls after `number`, which the driver refused. `before` is the last number that
    /// the stream wrote before them.
    /// Their waits stay, because the stream may have got some of them.
    pub(super) fn withdraw(&mut self, number: u64, before: Written) -> Vec<O> {
        self.last = before;
        let kept = self.starts.partition_point(|(at, _)| *at <= number);
        self.starts.drain(kept..).map(|(_, operation)| operation).collect()
    }

    /// Returns the last numbers that the stream writes.
    pub(super) fn written(&self) -> Written {
        self.last
    }

    /// Notes the number in the stream's word. Returns whether it is new.
    pub(super) fn note_reached(&mut self, number: u64) -> bool {
        let new = number > self.reached;
        self.reached = self.reached.max(number);
        new
    }

    /// Takes the next operation that the stream has reached.
    pub(super) fn take_due(&mut self) -> Option<O> {
        let due = self.starts.front().is_some_and(|(number, _)| *number <= self.reached);
        if due { self.starts.pop_front().map(|(_, operation)| operation) } else { None }
    }

    /// Takes any operation that has not started, for a stream that must not wait any longer.
    pub(super) fn take_any(&mut self) -> Option<O> {
        self.starts.pop_front().map(|(_, operation)| operation)
    }

    /// Returns the number up to which the stream is released now, if that is more than before.
    pub(super) fn release(&mut self) -> Option<u64> {
        let mut released = None;
        while let Some((number, operations)) = self.waits.front_mut() {
            operations.retain(|operation| !operation.is_over());
            if !operations.is_empty() {
                break;
            }
            released = Some(*number);
            self.waits.pop_front();
        }
        released
    }

    /// Returns whether the stream has waits that it is not released from.
    pub(super) fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Returns whether nothing is left to do for the thread until the next call.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle_at(self.reached)
    }

    /// Returns whether the stream, whose word is `reached`, has also passed the calls in which the thread has no part.
    pub(super) fn is_passed_at(&self, reached: u64) -> bool {
        reached >= self.last.pass
    }

    /// Returns whether nothing is left to do, if the stream's word is `reached`, perhaps not noted yet.
    pub(super) fn is_idle_at(&self, reached: u64) -> bool {
        self.starts.is_empty() && self.waits.is_empty() && reached >= self.last.mark
    }
}

#[cfg(test)]
mod tests;
