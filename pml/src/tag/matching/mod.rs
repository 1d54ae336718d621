//! MPI matching as a pure state machine: no sockets, clocks, locks or threads.
//!
//! The matcher admits the messages of one source in the order of their sequence numbers. An admitted message goes to
//! the oldest posted receive whose pattern it fits. A receive takes the oldest message that fits its pattern. Both take
//! constant time, no matter how many entries wait and which wildcards they use: each waiting entry is in the lists of
//! exactly those keys under which it can be looked up.
//!
//! ```text
//! key                     posted receive in     message in
//! (source, tag)           one of these four     all that apply
//! (source, any tag)                             only if tag >= 0
//! (any source, tag)
//! (any source, any tag)                         only if tag >= 0
//! ```
//!
//! A message looks at the heads of at most four lists, and takes the receive that was posted first. A waiting message
//! is in every list that a receive could name, so a receive looks at one head. The lists of a class of patterns are
//! created when a receive first uses that class.
//!
//! A matcher may have an inbox. Messages with its tag wait there for a service, which takes them in their order, and no
//! receive may fit them.

mod inbox;
mod index;
mod lengths;
mod posted;
mod sequence;
mod unexpected;

pub(crate) use inbox::{Batch, Taken};
pub(crate) use index::Pattern;
pub(crate) use lengths::Lengths;
pub(crate) use posted::PostKey;

use std::sync::Arc;

use posted::Posted;
use sequence::{Admission, Sequence};
use unexpected::Unexpected;

use crate::status::ANY;

/// The outcome for a message that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<P> {
    /// The message goes to this receive, which is removed.
    Matched(P),
    /// No posted receive fits it. The caller must [`Matcher::store`] it.
    Unexpected,
    /// An earlier message has not arrived. The caller must [`Matcher::park`] it.
    Early,
    /// Its sequence number was used before. No correct peer does that.
    Repeated,
}

/// A parked message whose turn has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Released<P, U> {
    /// The message goes to this receive.
    Matched(P, U),
    /// The message was stored as unexpected.
    Unexpected,
}

/// Messages for a service.
struct Inbox<U> {
    tag: i32,
    batch: Batch<U>,
}

/// Waiting receives `P` and messages `U` of one communicator.
pub(crate) struct Matcher<P, U> {
    posted: Posted<P>,
    unexpected: Unexpected<U>,
    inbox: Option<Box<Inbox<U>>>,
    lengths: Arc<Lengths>,
    sequences: Box<[Sequence<(i32, U)>]>,
}

impl<P, U> Matcher<P, U> {
    /// Creates an empty matcher for messages from `sources` ranks.
    pub(crate) fn new(sources: usize) -> Self {
        let lengths = Arc::<Lengths>::default();
        Matcher {
            posted: Posted::new(lengths.clone()),
            unexpected: Unexpected::new(lengths.clone()),
            inbox: None,
            lengths,
            sequences: (0..sources).map(|_| Sequence::default()).collect(),
        }
    }

    /// Admits a message from `source`, a rank below the number given to `new`, with sequence number `seq`.
    #[inline]
    pub(crate) fn arrive(&mut self, source: u32, tag: i32, seq: u32) -> Arrival<P> {
        match self.sequences[source as usize].admit(seq) {
            Admission::Next => match self.posted.take(source, tag) {
                Some(receive) => Arrival::Matched(receive),
                None => Arrival::Unexpected,
            },
            Admission::Early => Arrival::Early,
            Admission::Repeated => Arrival::Repeated,
        }
    }

    /// Admits a message by the fast path of [`arrive`](Self::arrive). Returns its receive if the message is the next of
    /// its source, no message is parked behind it, and the receive is posted. Otherwise it has no effect.
    #[inline(always)]
    pub(crate) fn take_next(&mut self, source: u32, tag: i32, seq: u32) -> Option<P> {
        let sequence = &mut self.sequences[source as usize];
        if !sequence.is_next_alone(seq) {
            return None;
        }
        let receive = self.posted.take(source, tag)?;
        sequence.advance();
        Some(receive)
    }

    /// Keeps a message for which [`arrive`](Self::arrive) returned [`Arrival::Unexpected`].
    pub(crate) fn store(&mut self, source: u32, tag: i32, message: U) {
        match &mut self.inbox {
            Some(inbox) if inbox.tag == tag => {
                inbox.batch.push_other(source, message);
                self.lengths.inbox.raise();
            }
            _ => self.unexpected.push(source, tag, message),
        }
    }

    /// Has messages with `tag`, also those that wait already, wait in the inbox.
    pub(crate) fn open_inbox(&mut self, tag: i32) {
        if self.inbox.is_some() {
            return;
        }
        let mut batch = Batch::default();
        while let Some((source, _, message)) = self.unexpected.take(Pattern { source: ANY, tag }) {
            batch.push_other(source, message);
            self.lengths.inbox.raise();
        }
        self.inbox = Some(Box::new(Inbox { tag, batch }));
    }

    /// Returns whether messages with `tag` wait in the inbox.
    #[inline(always)]
    pub(crate) fn has_inbox(&self, tag: i32) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| inbox.tag == tag)
    }

    /// Returns whether a message is the next of its source, and no message is parked behind it.
    #[inline]
    pub(crate) fn is_next_alone(&self, source: u32, seq: u32) -> bool {
        self.sequences[source as usize].is_next_alone(seq)
    }

    /// Admits a whole message for which [`is_next_alone`](Self::is_next_alone) returned true to the inbox. `append`
    /// appends its payload.
    #[inline]
    pub(crate) fn store_whole(&mut self, source: u32, append: impl FnOnce(&mut Vec<u8>)) {
        let Some(inbox) = &mut self.inbox else { return };
        self.sequences[source as usize].advance();
        inbox.batch.push_whole(source, append);
        self.lengths.inbox.raise();
    }

    /// Exchanges the messages in the inbox for an empty batch.
    #[inline]
    pub(crate) fn take_inbox(&mut self, empty: &mut Batch<U>) {
        if let Some(inbox) = &mut self.inbox {
            self.lengths.inbox.lower(inbox.batch.len());
            inbox.batch.take_into(empty);
        }
    }

    /// Keeps a message for which [`arrive`](Self::arrive) returned [`Arrival::Early`].
    pub(crate) fn park(&mut self, source: u32, tag: i32, seq: u32, message: U) {
        self.sequences[source as usize].park(seq, (tag, message));
    }

    /// Admits the next parked message of `source`, if it is here. Callers repeat this after each admitted arrival until
    /// it returns `None`.
    #[inline]
    pub(crate) fn release(&mut self, source: u32) -> Option<Released<P, U>> {
        let (tag, message) = self.sequences[source as usize].release()?;
        Some(match self.posted.take(source, tag) {
            Some(receive) => Released::Matched(receive, message),
            None => {
                self.store(source, tag, message);
                Released::Unexpected
            }
        })
    }

    /// Removes the oldest waiting message that fits, and returns it with its source and tag.
    #[inline(always)]
    pub(crate) fn take(&mut self, pattern: Pattern) -> Option<(u32, i32, U)> {
        self.unexpected.take(pattern)
    }

    /// Returns the oldest waiting message that fits, without removing it.
    pub(crate) fn peek(&mut self, pattern: Pattern) -> Option<(u32, i32, &U)> {
        self.unexpected.peek(pattern)
    }

    /// Posts a receive for which [`take`](Self::take) just found no message.
    #[inline(always)]
    pub(crate) fn post(&mut self, pattern: Pattern, receive: P) -> PostKey {
        self.posted.push(pattern, receive)
    }

    /// Returns whether messages of `source` are parked, so that [`release`](Self::release) may return one.
    #[inline]
    pub(crate) fn parks(&self, source: u32) -> bool {
        self.sequences[source as usize].parks()
    }

    /// Removes a receive if it is still posted and `is` confirms that it is the intended one.
    pub(crate) fn cancel(&mut self, key: PostKey, is: impl FnOnce(&P) -> bool) -> Option<P> {
        self.posted.remove(key, is)
    }

    /// Removes every receive that names `source`, and with `with_any` those from any source. Drops the parked messages
    /// of `source`. Its unexpected messages can still be received.
    pub(crate) fn abandon(&mut self, source: u32, with_any: bool) -> (Vec<P>, Vec<U>) {
        let parked = self.sequences[source as usize].clear();
        let receives = self.posted.remove_from(|from| from == source as i32 || (with_any && from == ANY));
        (receives, parked.into_iter().map(|(_, message)| message).collect())
    }

    /// Removes the unexpected messages for which a condition holds by their tags, and returns them and their sources.
    pub(crate) fn take_if(&mut self, which: impl Fn(i32, &U) -> bool) -> Vec<(u32, U)> {
        self.unexpected.take_if(which)
    }

    /// Removes every receive from any source.
    pub(crate) fn abandon_any(&mut self) -> Vec<P> {
        self.posted.remove_from(|from| from == ANY)
    }

    /// Returns the sources that posted receives name, each once. [`ANY`] is one of them if a receive names it.
    pub(crate) fn awaited(&self) -> Vec<i32> {
        self.posted.sources()
    }

    /// Removes all receives and messages, except those in the inbox.
    pub(crate) fn drain(&mut self) -> (Vec<P>, Vec<(u32, U)>) {
        let mut messages = self.unexpected.drain();
        for (source, sequence) in self.sequences.iter_mut().enumerate() {
            messages.extend(sequence.clear().into_iter().map(|(_, message)| (source as u32, message)));
        }
        (self.posted.drain(), messages)
    }

    /// Returns the numbers of posted receives and unexpected messages, which can be read without the caller's lock.
    pub(crate) fn lengths(&self) -> &Arc<Lengths> {
        &self.lengths
    }

    /// Checks the redundant counts.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.posted.check();
        self.unexpected.check();
    }

    /// Returns how many lists, nodes and slots were visited so far. Tests bound the work by this number.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.posted.steps() + self.unexpected.steps()
    }
}

#[cfg(test)]
mod tests;
