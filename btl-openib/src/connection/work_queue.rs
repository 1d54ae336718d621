//! The service thread's work queue, independent of devices.

use std::collections::VecDeque;

use ahash::AHashMap;
use cableway_base::Rank;

/// Pending work: messages from peers, and connections that this process wants.
///
/// Only the latest message of each peer is kept, since it carries the whole state. The number of pending messages is
/// therefore bounded by the number of peers.
#[derive(Debug)]
pub struct WorkQueue<S, C> {
    order: VecDeque<Rank>,
    messages: AHashMap<Rank, S>,
    wanted: VecDeque<C>,
}

/// A piece of work.
#[derive(Debug, PartialEq, Eq)]
pub enum Work<S, C> {
    /// Handle a peer's message.
    Receive(Rank, S),
    /// Make a connection.
    Connect(C),
}

impl<S, C> Default for WorkQueue<S, C> {
    fn default() -> Self {
        WorkQueue { order: VecDeque::new(), messages: AHashMap::new(), wanted: VecDeque::new() }
    }
}

impl<S, C> WorkQueue<S, C> {
    /// Queues a peer's message. It replaces the peer's pending message, in place.
    pub fn receive(&mut self, peer: Rank, message: S) {
        if self.messages.insert(peer, message).is_none() {
            self.order.push_back(peer);
        }
    }

    /// Queues a wanted connection.
    pub fn connect(&mut self, wanted: C) {
        self.wanted.push_back(wanted);
    }

    /// Takes the next piece of work. Messages come first: peers that wait for an answer would repeat them.
    pub fn take(&mut self) -> Option<Work<S, C>> {
        let message = self.take_message().map(|(peer, message)| Work::Receive(peer, message));
        message.or_else(|| self.wanted.pop_front().map(Work::Connect))
    }

    /// Takes the next message.
    pub fn take_message(&mut self) -> Option<(Rank, S)> {
        let peer = self.order.pop_front()?;
        self.messages.remove(&peer).map(|message| (peer, message))
    }

    /// Returns the number of pending messages. While there are any, silence is no timeout: the expected message may be
    /// among them.
    pub fn pending_messages(&self) -> usize {
        self.order.len()
    }

    /// Whether no work is pending.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty() && self.wanted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_handled_before_new_connections() {
        let mut work_queue = WorkQueue::default();
        work_queue.connect("one");
        work_queue.connect("two");
        assert_eq!(work_queue.take(), Some(Work::Connect("one")));
        work_queue.receive(8, 'a');
        work_queue.receive(7, 'b');
        let rest: Vec<_> = std::iter::from_fn(|| work_queue.take()).collect();
        assert_eq!(rest, [Work::Receive(8, 'a'), Work::Receive(7, 'b'), Work::Connect("two")]);
        assert!(work_queue.is_empty());
    }

    #[test]
    fn a_repeated_message_keeps_its_place() {
        let mut work_queue = WorkQueue::<_, ()>::default();
        for word in 0..1000 {
            work_queue.receive(word % 3, word);
        }
        assert_eq!(work_queue.pending_messages(), 3);
        let message: Vec<_> = std::iter::from_fn(|| work_queue.take_message()).collect();
        assert_eq!(message, [(0, 999), (1, 997), (2, 998)]);
        work_queue.receive(1, 5);
        assert_eq!(work_queue.take_message(), Some((1, 5)));
    }
}
