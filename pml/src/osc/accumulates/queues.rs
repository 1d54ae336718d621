//! The order of accumulates. The data of a large one lands later than that of a small one behind it, so each origin has a
//! queue.

use std::collections::{HashMap, VecDeque};

use ahash::RandomState;

/// Accumulates `A` whose data `D` lands at any time.
pub(super) struct Queues<A, D> {
    queues: HashMap<u32, Queue<A, D>, RandomState>,
    /// The origins whose first accumulate has its data. They take turns.
    ready: VecDeque<u32>,
}

struct Queue<A, D> {
    /// The place of the first entry.
    first: u64,
    entries: VecDeque<Entry<A, D>>,
}

struct Entry<A, D> {
    accumulate: A,
    data: Option<D>,
}

impl<A, D> Default for Queues<A, D> {
    fn default() -> Self {
        Queues { queues: HashMap::default(), ready: VecDeque::new() }
    }
}

impl<A, D> Default for Queue<A, D> {
    fn default() -> Self {
        Queue { first: 0, entries: VecDeque::new() }
    }
}

impl<A, D> Queues<A, D> {
    /// Adds an accumulate behind the earlier ones of its origin. Returns its place.
    pub(super) fn add(&mut self, origin: u32, accumulate: A) -> u64 {
        let queue = self.queues.entry(origin).or_default();
        queue.entries.push_back(Entry { accumulate, data: None });
        queue.first + queue.entries.len() as u64 - 1
    }

    /// Notes that the data of a place has landed. That happens once.
    pub(super) fn landed(&mut self, origin: u32, place: u64, data: D) {
        let Some(queue) = self.queues.get_mut(&origin) else { return };
        let Some(at) = place.checked_sub(queue.first) else { return };
        let Some(entry) = usize::try_from(at).ok().and_then(|at| queue.entries.get_mut(at)) else { return };
        entry.data = Some(data);
        if at == 0 {
            self.ready.push_back(origin);
        }
    }

    /// Takes the next accumulate that is the first of its origin and has its data.
    pub(super) fn next(&mut self) -> Option<(A, D)> {
        let origin = self.ready.pop_front()?;
        let queue = self.queues.get_mut(&origin)?;
        let Entry { accumulate, data } = queue.entries.pop_front()?;
        queue.first += 1;
        if queue.entries.front().is_some_and(|entry| entry.data.is_some()) {
            self.ready.push_back(origin);
        }
        Some((accumulate, data?))
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.values().all(|queue| queue.entries.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_lands_early_waits_for_earlier_accumulates_of_its_origin() {
        let mut queues = Queues::default();
        let places = [1, 2, 3].map(|number| queues.add(7, number));
        let other = queues.add(8, 9);
        queues.landed(7, places[2], "third");
        queues.landed(7, places[1], "second");
        assert!(!queues.has_ready() && queues.next().is_none());
        queues.landed(8, other, "other");
        assert_eq!((queues.next(), queues.next()), (Some((9, "other")), None));
        queues.landed(7, places[0], "first");
        assert_eq!(queues.next(), Some((1, "first")));
        assert!(queues.has_ready() && !queues.is_empty());
        assert_eq!((queues.next(), queues.next()), (Some((2, "second")), Some((3, "third"))));
        assert!(queues.is_empty() && !queues.has_ready());
        let again = queues.add(7, 4);
        // Nobody waits for this place any more.
        queues.landed(7, places[0], "again");
        assert!(queues.next().is_none());
        queues.landed(7, again, "fourth");
        assert_eq!(queues.next(), Some((4, "fourth")));
        assert!(queues.is_empty());
    }

    #[test]
    fn origins_take_turns() {
        let mut queues = Queues::default();
        for (origin, number) in [(1, 10), (1, 11), (2, 20), (2, 21)] {
            let place = queues.add(origin, number);
            queues.landed(origin, place, ());
        }
        let order: Vec<_> = std::iter::from_fn(|| queues.next()).map(|(number, ())| number).collect();
        assert_eq!(order, [10, 20, 11, 21]);
    }
}
