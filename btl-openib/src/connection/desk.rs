//! What the thread that makes connections does next, without a device.

use std::collections::VecDeque;

use ahash::AHashMap;
use cableway_base::Rank;

/// What waits to be done: what peers have said, and connections that this process wants.
///
/// Of each peer the last word is kept, for it says all that there is to say. So what waits is bounded by the number of
/// peers, however often they speak while they are not heard.
#[derive(Debug)]
pub struct Desk<S, C> {
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

impl<S, C> Default for Desk<S, C> {
    fn default() -> Self {
        Desk { order: VecDeque::new(), said: AHashMap::new(), wanted: VecDeque::new() }
    }
}

impl<S, C> Desk<S, C> {
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
        let said = self.take_said().map(|(peer, said)| Work::Hear(peer, said));
        said.or_else(|| self.wanted.pop_front().map(Work::Connect))
    }

    /// The next of what peers have said.
    pub fn take_said(&mut self) -> Option<(Rank, S)> {
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
        let mut desk = Desk::default();
        desk.connect("one");
        desk.connect("two");
        assert_eq!(desk.take(), Some(Work::Connect("one")));
        desk.hear(8, 'a');
        desk.hear(7, 'b');
        let rest: Vec<_> = std::iter::from_fn(|| desk.take()).collect();
        assert_eq!(rest, [Work::Hear(8, 'a'), Work::Hear(7, 'b'), Work::Connect("two")]);
        assert!(desk.is_empty());
    }

    #[test]
    fn who_speaks_again_keeps_its_place_and_takes_no_more_room() {
        let mut desk = Desk::<_, ()>::default();
        for word in 0..1000 {
            desk.hear(word % 3, word);
        }
        assert_eq!(desk.unheard(), 3);
        let said: Vec<_> = std::iter::from_fn(|| desk.take_said()).collect();
        assert_eq!(said, [(0, 999), (1, 997), (2, 998)]);
        desk.hear(1, 5);
        assert_eq!(desk.take_said(), Some((1, 5)));
    }
}
