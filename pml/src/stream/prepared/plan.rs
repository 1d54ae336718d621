//! What the two streams of a prepared operation do at each post: a protocol without clocks, threads or devices.
//!
//! Two words hold 0 or 1. The receiver's stream raises *ready* when what used its buffer before is done. The sender's
//! stream waits for that, copies, and raises *done* behind the copy, for which the receiver's stream waits. Each stream
//! clears the word for which it has waited. So every post has the same steps with the same values, and a graph of them can
//! be launched again and again.
//!
//! # Why no signal is lost
//! Each stream does its steps in order, and each step's effect is visible before the next step begins. Signals alternate:
//! the receiver raises *ready* again only after it has seen *done*, which the sender raises after it has cleared *ready*.
//! The sender raises *done* again only after it has seen *ready*, which the receiver raises after it has cleared *done*.
//! The tests go through every interleaving.

/// An end of a prepared operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stream) enum Side {
    Send,
    Receive,
}

/// A word that both streams access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stream) enum Flag {
    /// The receiver's buffer may be written.
    Ready,
    /// The data is in the receiver's buffer.
    Done,
}

/// A step of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stream) enum Step {
    /// Waits until the flag is 1.
    Await(Flag),
    /// Writes 0.
    Clear(Flag),
    /// Writes 1.
    Raise(Flag),
    /// Copies from the sender's to the receiver's buffer.
    Copy,
}

impl Side {
    /// Returns the steps of one post.
    pub(in crate::stream) fn steps(self) -> &'static [Step] {
        const SEND: [Step; 4] =
            [Step::Await(Flag::Ready), Step::Clear(Flag::Ready), Step::Copy, Step::Raise(Flag::Done)];
        const RECEIVE: [Step; 3] = [Step::Raise(Flag::Ready), Step::Await(Flag::Done), Step::Clear(Flag::Done)];
        match self {
            Side::Send => &SEND,
            Side::Receive => &RECEIVE,
        }
    }

    /// Returns the only flag that the side waits for. To release its stream, its CPU raises that one.
    pub(in crate::stream) fn awaited(self) -> Flag {
        match self {
            Side::Send => Flag::Ready,
            Side::Receive => Flag::Done,
        }
    }
}

#[cfg(test)]
mod tests;
