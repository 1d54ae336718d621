//! The queues of posted receives.

use std::collections::VecDeque;
use std::sync::Arc;

use super::index::{CLASSES, Index, List, Pattern, Slot};
use super::lengths::Lengths;

/// Identifies a posted receive. The key stays valid after the receive is removed: its number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostKey {
    /// The slot of its queue, and in the last two bits the class of its pattern.
    pub(crate) node: u32,
    /// Number of the receive, from 1, in the order of posting.
    pub(crate) number: u64,
}

impl PostKey {
    fn list(self) -> Slot {
        self.node / CLASSES as u32
    }

    fn class(self) -> usize {
        self.node as usize % CLASSES
    }
}

/// A receive in its queue, or `None` if it was withdrawn.
struct Posting<P> {
    number: u64,
    receive: Option<P>,
}

/// Receives with one pattern, the oldest first. The first and the last entry are never withdrawn.
struct Queue<P> {
    postings: VecDeque<Posting<P>>,
    withdrawn: usize,
}

/// The largest capacity that an empty queue keeps.
const KEPT_CAPACITY: usize = 256;

impl<P> Default for Queue<P> {
    fn default() -> Self {
        Queue { postings: VecDeque::new(), withdrawn: 0 }
    }
}

impl<P> List for Queue<P> {
    #[inline]
    fn is_empty(&self) -> bool {
        self.postings.is_empty()
    }
}

impl<P> Queue<P> {
    /// Removes the oldest receive, and returns it with whether the queue is empty now.
    #[inline(always)]
    fn pop(&mut self) -> Option<(P, bool)> {
        let first = self.postings.pop_front()?;
        let empty = self.postings.is_empty();
        if self.withdrawn != 0 || (empty && self.postings.capacity() > KEPT_CAPACITY) {
            self.tidy();
        }
        // The first entry is never withdrawn, so this is `Some`.
        Some((first.receive?, self.postings.is_empty()))
    }

    #[cold]
    fn tidy(&mut self) {
        self.trim();
        if self.postings.is_empty() {
            self.postings = VecDeque::new();
        }
    }

    fn withdraw(&mut self, number: u64, is: impl FnOnce(&P) -> bool) -> Option<P> {
        let at = self.postings.binary_search_by_key(&number, |posting| posting.number).ok()?;
        let receive = self.postings[at].receive.take_if(|receive| is(receive))?;
        self.withdrawn += 1;
        self.trim();
        if self.withdrawn > self.postings.len() / 2 {
            self.postings.retain(|posting| posting.receive.is_some());
            self.withdrawn = 0;
        }
        Some(receive)
    }

    /// Removes the withdrawn entries at both ends.
    fn trim(&mut self) {
        let withdrawn = |end: Option<&Posting<P>>| end.is_some_and(|posting| posting.receive.is_none());
        while withdrawn(self.postings.front()) {
            self.postings.pop_front();
            self.withdrawn -= 1;
        }
        while withdrawn(self.postings.back()) {
            self.postings.pop_back();
            self.withdrawn -= 1;
        }
    }

    fn drain(&mut self) -> impl Iterator<Item = (u64, P)> {
        let Queue { postings, .. } = std::mem::take(self);
        postings.into_iter().filter_map(|posting| Some((posting.number, posting.receive?)))
    }
}

pub(crate) struct Posted<P> {
    queues: Index<Queue<P>>,
    /// Number of posted receives per class. A class without receives is not looked up.
    counts: [usize; CLASSES],
    /// Its field `posted` is the sum of the counts.
    lengths: Arc<Lengths>,
    last_number: u64,
}

impl<P> Posted<P> {
    pub(crate) fn new(lengths: Arc<Lengths>) -> Self {
        Posted { queues: Index::default(), counts: [0; CLASSES], lengths, last_number: 0 }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, pattern: Pattern, receive: P) -> PostKey {
        self.last_number += 1;
        let (number, class) = (self.last_number, pattern.class());
        let list = self.queues.find_or_insert(pattern);
        self.queues.change(list, |queue| queue.postings.push_back(Posting { number, receive: Some(receive) }));
        self.counts[class] += 1;
        self.lengths.posted.raise();
        PostKey { node: list * CLASSES as u32 + class as u32, number }
    }

    /// Removes and returns the receive that was posted first of those that the message fits.
    #[inline(always)]
    pub(crate) fn take(&mut self, source: u32, tag: i32) -> Option<P> {
        let [_, wildcards @ ..] = self.counts;
        if wildcards == [0; CLASSES - 1] {
            let list = self.queues.find_in(0, Pattern { source: source as i32, tag })?;
            return self.pop(list, 0);
        }
        self.take_among_wildcards(source, tag)
    }

    #[inline(never)]
    fn take_among_wildcards(&mut self, source: u32, tag: i32) -> Option<P> {
        let mut first: Option<(u64, Slot, usize)> = None;
        for (class, pattern) in Pattern::of_message(source, tag).into_iter().enumerate() {
            let Some(pattern) = pattern.filter(|_| self.counts[class] != 0) else { continue };
            let Some(list) = self.queues.find(pattern) else { continue };
            let Some(oldest) = self.queues.get(list).and_then(|queue| queue.postings.front()) else { continue };
            if first.is_none_or(|(least, ..)| oldest.number < least) {
                first = Some((oldest.number, list, class));
            }
        }
        let (_, list, class) = first?;
        self.pop(list, class)
    }

    #[inline(always)]
    fn pop(&mut self, list: Slot, class: usize) -> Option<P> {
        let receive = self.queues.pop(list, |queue| queue.pop())?;
        self.counts[class] -= 1;
        self.lengths.posted.lower(1);
        Some(receive)
    }

    pub(crate) fn remove(&mut self, key: PostKey, is: impl FnOnce(&P) -> bool) -> Option<P> {
        self.queues.get(key.list())?;
        let receive = self.queues.change(key.list(), |queue| queue.withdraw(key.number, is))?;
        self.counts[key.class()] -= 1;
        self.lengths.posted.lower(1);
        Some(receive)
    }

    /// Returns the sources that receives name, each once.
    pub(crate) fn sources(&self) -> Vec<i32> {
        let waits = |&(_, list): &(Pattern, Slot)| self.queues.get(list).is_some_and(|queue| !queue.is_empty());
        let mut sources: Vec<i32> =
            self.queues.patterns().into_iter().filter(waits).map(|(pattern, _)| pattern.source).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    /// Removes every receive from a source for which `which` returns true.
    pub(crate) fn remove_from(&mut self, which: impl Fn(i32) -> bool) -> Vec<P> {
        self.drain_if(|pattern| which(pattern.source))
    }

    pub(crate) fn drain(&mut self) -> Vec<P> {
        self.drain_if(|_| true)
    }

    /// Removes the receives with these patterns, and returns them in the order of posting.
    fn drain_if(&mut self, is: impl Fn(Pattern) -> bool) -> Vec<P> {
        let mut found = Vec::new();
        for (pattern, list) in self.queues.patterns().into_iter().filter(|&(pattern, _)| is(pattern)) {
            let before = found.len();
            self.queues.change(list, |queue| found.extend(queue.drain()));
            let drained = found.len() - before;
            self.counts[pattern.class()] -= drained;
            self.lengths.posted.lower(drained);
        }
        found.sort_unstable_by_key(|&(number, _)| number);
        found.into_iter().map(|(_, receive)| receive).collect()
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.queues.check();
        assert_eq!(self.counts.iter().sum::<usize>(), self.lengths.posted.get());
    }

    #[cfg(test)]
    pub(crate) fn lists(&self) -> usize {
        self.queues.len()
    }

    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.queues.steps.get()
    }
}
