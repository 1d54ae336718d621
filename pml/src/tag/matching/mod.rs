//! MPI matching as a pure state machine: no sockets, clocks, locks or threads.
//!
//! Messages of one source are admitted in the order of their sequence numbers. An admitted message goes to the oldest
//! posted receive whose pattern it fits; a receive takes the oldest message that fits it. Both take constant time
//! however many of them wait and whatever wildcards they use: each waiting entry is linked into the lists of exactly
//! those keys under which it can be looked up.
//!
//! ```text
//!                         posted receive in     message in
//! (source, tag)           one of these four     all that apply
//! (source, any tag)                             only if tag >= 0
//! (any source, tag)
//! (any source, any tag)                         only if tag >= 0
//! ```
//!
//! Of the (at most four) lists that a message could take its receive from, the one whose head was posted first wins.
//! A message that waits is in all the lists that a receive could name, so that a receive looks at one head only; lists
//! of kinds that no receive has asked for yet are made when one does.

mod index;
mod lengths;
mod posted;
mod sequence;
mod unexpected;

pub(crate) use index::Pattern;
pub(crate) use lengths::Lengths;
pub(crate) use posted::PostKey;

use std::sync::Arc;

use posted::Posted;
use sequence::{Admission, Sequence};
use unexpected::Unexpected;

use crate::status::ANY;

/// What becomes of a message that arrives.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<P> {
    /// It goes to this receive, which is posted no more.
    Matched(P),
    /// Nobody waits for it: the caller must [`Matcher::store`] it.
    Unexpected,
    /// One sent before it is still on its way: the caller must [`Matcher::park`] it.
    Early,
    /// Its number was seen before. No correct peer does that.
    Repeated,
}

/// A parked message whose turn has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Released<P, U> {
    /// It goes to this receive.
    Matched(P, i32, U),
    /// It was stored as unexpected.
    Unexpected,
}

/// The receives `P` and messages `U` that wait in one communicator.
pub(crate) struct Matcher<P, U> {
    posted: Posted<P>,
    unexpected: Unexpected<U>,
    lengths: Arc<Lengths>,
    sequences: Box<[Sequence<(i32, U)>]>,
}

impl<P, U> Matcher<P, U> {
    /// An empty one for messages from `sources` ranks.
    pub(crate) fn new(sources: usize) -> Self {
        let lengths = Arc::<Lengths>::default();
        Matcher {
            posted: Posted::new(lengths.clone()),
            unexpected: Unexpected::new(lengths.clone()),
            lengths,
            sequences: (0..sources).map(|_| Sequence::default()).collect(),
        }
    }

    /// A message from `source` (a rank below the number given to `new`) has arrived with number `seq`.
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

    /// The receive that a message goes to, if it is the next of its source, nothing is parked behind it, and the
    /// receive is posted: the short way through [`arrive`](Self::arrive). None: nothing has changed.
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

    /// Keeps a message that was answered [`Arrival::Unexpected`].
    pub(crate) fn store(&mut self, source: u32, tag: i32, message: U) {
        self.unexpected.push(source, tag, message);
    }

    /// Keeps a message that was answered [`Arrival::Early`].
    pub(crate) fn park(&mut self, source: u32, tag: i32, seq: u32, message: U) {
        self.sequences[source as usize].park(seq, (tag, message));
    }

    /// Admits the parked message of `source` whose turn it is, if there is one. To be called after each admitted
    /// arrival until it answers none.
    #[inline]
    pub(crate) fn release(&mut self, source: u32) -> Option<Released<P, U>> {
        let (tag, message) = self.sequences[source as usize].release()?;
        Some(match self.posted.take(source, tag) {
            Some(receive) => Released::Matched(receive, tag, message),
            None => {
                self.unexpected.push(source, tag, message);
                Released::Unexpected
            }
        })
    }

    /// Takes the oldest waiting message that fits, with its source and tag.
    #[inline(always)]
    pub(crate) fn take(&mut self, pattern: Pattern) -> Option<(u32, i32, U)> {
        self.unexpected.take(pattern)
    }

    /// Looks at the oldest waiting message that fits.
    pub(crate) fn peek(&mut self, pattern: Pattern) -> Option<(u32, i32, &U)> {
        self.unexpected.peek(pattern)
    }

    /// Posts a receive for which [`take`](Self::take) just found nothing.
    #[inline(always)]
    pub(crate) fn post(&mut self, pattern: Pattern, receive: P) -> PostKey {
        self.posted.push(pattern, receive)
    }

    /// The number of the next message of `source`, if that goes to the receive that was just posted with this pattern, as
    /// long as it is posted and provided that the tag fits: whatever else may be posted later.
    pub(crate) fn next_goes_to(&mut self, pattern: Pattern) -> Option<u32> {
        let sequence = self.sequences.get(usize::try_from(pattern.source).ok()?)?;
        let next = sequence.next_alone()?;
        self.posted.is_alone(pattern).then_some(next)
    }

    /// Whether messages of `source` are parked, so that [`release`](Self::release) may yield one.
    #[inline]
    pub(crate) fn parks(&self, source: u32) -> bool {
        self.sequences[source as usize].parks()
    }

    /// Whether a receive is still posted.
    pub(crate) fn is_posted(&self, key: PostKey) -> bool {
        self.posted.contains(key)
    }

    /// Takes a receive back if it is still posted and `is` the one that was meant.
    pub(crate) fn cancel(&mut self, key: PostKey, is: impl FnOnce(&P) -> bool) -> Option<P> {
        self.posted.remove(key, is)
    }

    /// Takes back every receive that names `source` (and, if so asked, those from any source), and forgets what `source`
    /// sent out of turn. Messages of it that are waiting can still be received.
    pub(crate) fn abandon(&mut self, source: u32, with_any: bool) -> (Vec<P>, Vec<U>) {
        let parked = self.sequences[source as usize].clear();
        let receives = self.posted.remove_from(|from| from == source as i32 || (with_any && from == ANY));
        (receives, parked.into_iter().map(|(_, message)| message).collect())
    }

    /// Takes back every receive from any source.
    pub(crate) fn abandon_any(&mut self) -> Vec<P> {
        self.posted.remove_from(|from| from == ANY)
    }

    /// Whom posted receives wait for, each once; [`ANY`] among them where some wait for anybody.
    pub(crate) fn awaited(&self) -> Vec<i32> {
        self.posted.sources()
    }

    /// Empties it.
    pub(crate) fn drain(&mut self) -> (Vec<P>, Vec<(u32, U)>) {
        let mut messages = self.unexpected.drain();
        for (source, sequence) in self.sequences.iter_mut().enumerate() {
            messages.extend(sequence.clear().into_iter().map(|(_, message)| (source as u32, message)));
        }
        (self.posted.drain(), messages)
    }

    /// How many receives are posted and how many messages wait for one, to be read at any time.
    pub(crate) fn lengths(&self) -> &Arc<Lengths> {
        &self.lengths
    }

    /// Asserts that what is told of the queues is so.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.posted.check();
        self.unexpected.check();
    }

    /// How many lists, nodes and slots were looked at so far: what a bound on the work is asserted on.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.posted.steps() + self.unexpected.steps()
    }
}

#[cfg(test)]
mod tests;
