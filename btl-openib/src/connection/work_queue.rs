//! What the thread that makes connections does next, without a device.

use std::collections::VecDeque;

use ahash::AHashMap;
use cableway_base::Rank;

/// What waits to be done: what peers have said, and connections that this process wants.
///
/// Of each peer the last word is kept, for it says all that there is to say. So what waits is bounded by the number of
/// peers, however often they speak while they are not heard.
#[derive(Debug)]
pub struct WorkQueue<S, C> {
    order: VecDeque<Rank>,
    said: AHashMap<Rank, S>,
    wanted: VecDeque<C>,
}

/// A piece of work.
#[derive(Debug, PartialEq, Eq)]
pub enum Work<S, C> {
    /// A peer said something.
    Hear(Rank, S),
    /// A connection is to be made.
    Connect(C),
}

impl<S, C> Default for WorkQueue<S, C> {
    fn default() -> Self {
        WorkQueue { order: VecDeque::new(), said: AHashMap::new(), wanted: VecDeque::new() }
    }
}

impl<S, C> WorkQueue<S, C> {
    /// A peer has spoken. In its place in the queue, if it waits already.
    pub fn hear(&mut self, peer: Rank, said: S) {
        if self.said.insert(peer, said).is_none() {
            self.order.push_back(peer);
        }
    }

    /// A connection is wanted.
    pub fn connect(&mut self, wanted: C) {
        self.wanted.push_back(wanted);
    }

    /// The next piece of work. Whoever speaks comes first: to speak to more peers while these wait for an answer would
    /// have them all say it again.
    pub fn take(&mut self) -> Option<Work<S, C>> {
        let said = self.take_message().map(|(peer, said)| Work::Hear(peer, said));
        said.or_else(|| self.wanted.pop_front().map(Work::Connect))
    }

    /// The next of what peers have said.
    pub fn take_message(&mut self) -> Option<(Rank, S)> {
        let peer = self.order.pop_front()?;
        self.said.remove(&peer).map(|said| (peer, said))
    }

    /// How many wait to be heard. As long as there are any, silence is no sign: what is waited for may be here.
    pub fn unheard(&self) -> usize {
        self.order.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.wanted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_speaks_is_heard_before_others_are_spoken_to() {
        let mut work_queue = WorkQueue::default();
        work_queue.connect("one");
        work_queue.connect("two");
        assert_eq!(work_queue.take(), Some(Work::Connect("one")));
        work_queue.hear(8, 'a');
        work_queue.hear(7, 'b');
        let rest: Vec<_> = std::iter::from_fn(|| work_queue.take()).collect();
        assert_eq!(rest, [Work::Hear(8, 'a'), Work::Hear(7, 'b'), Work::Connect("two")]);
        assert!(work_queue.is_empty());
    }

    #[test]
    fn who_speaks_again_keeps_its_place_and_takes_no_more_room() {
        let mut work_queue = WorkQueue::<_, ()>::default();
        for word in 0..1000 {
            work_queue.hear(word % 3, word);
        }
        assert_eq!(work_queue.unheard(), 3);
        let said: Vec<_> = std::iter::from_fn(|| work_queue.take_message()).collect();
        assert_eq!(said, [(0, 999), (1, 997), (2, 998)]);
        work_queue.hear(1, 5);
        assert_eq!(work_queue.take_message(), Some((1, 5)));
    }
}
