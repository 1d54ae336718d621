//! The operations that a process has issued to one target: their numbers, fences, and which are complete.
//!
//! An operation after a fence starts once every operation before the fence is complete. Without a fence, operations are
//! independent of each other.

use std::collections::VecDeque;

/// Operations `T` to one target.
pub(super) struct Window<T> {
    next: u64,
    under_way: UnderWay<T>,
    held: VecDeque<Held<T>>,
}

/// Operations by their numbers, each greater than those before. Most operations end in this order, so that a list takes less
/// time than a tree.
struct UnderWay<T> {
    /// `None` stands for an operation that is complete. The first entry is of one that is not.
    entries: VecDeque<(u64, Option<T>)>,
    /// The number of operations.
    len: usize,
}

enum Held<T> {
    Fence,
    Operation(u64, T),
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Window { next: 0, under_way: UnderWay { entries: VecDeque::new(), len: 0 }, held: VecDeque::new() }
    }
}

impl<T> UnderWay<T> {
    /// Entries of complete operations that are kept, beyond one for each operation under way.
    const SPARE: usize = 64;

    /// Adds an operation. Its number is the greatest.
    fn push(&mut self, number: u64, operation: T) {
        self.entries.push_back((number, Some(operation)));
        self.len += 1;
    }

    fn find(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    fn get(&self, number: u64) -> Option<&T> {
        self.entries.get(self.find(number)?)?.1.as_ref()
    }

    fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.find(number)?;
        let removed = self.entries[at].1.take()?;
        self.len -= 1;
        while let Some((_, None)) = self.entries.front() {
            self.entries.pop_front();
        }
        // One operation that stays does not keep the entries of all later ones.
        if self.entries.len() > 2 * self.len + Self::SPARE {
            self.entries.retain(|(_, operation)| operation.is_some());
        }
        Some(removed)
    }

    /// Returns the number of the first operation.
    fn first(&self) -> Option<u64> {
        self.entries.front().map(|(number, _)| *number)
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all operations.
    fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.len = 0;
        std::mem::take(&mut self.entries).into_iter().filter_map(|(_, operation)| operation)
    }
}

impl<T: Clone> Window<T> {
    /// Returns the number that the next operation gets.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    /// Adds an operation. Returns whether it starts now; otherwise [`end`](Self::end) returns it later.
    pub(super) fn add(&mut self, operation: T) -> bool {
        let number = self.next;
        self.next += 1;
        if self.held.is_empty() {
            self.under_way.push(number, operation);
            return true;
        }
        self.held.push_back(Held::Operation(number, operation));
        false
    }

    /// Orders later operations after all earlier ones.
    pub(super) fn fence(&mut self) {
        let needless = self.under_way.is_empty() && self.held.is_empty();
        if !needless && !matches!(self.held.back(), Some(Held::Fence)) {
            self.held.push_back(Held::Fence);
        }
    }

    /// Removes an operation that is complete. Returns it, and those that start now, in the order in which they were added.
    pub(super) fn end(&mut self, number: u64) -> (Option<T>, Vec<T>) {
        let ended = self.under_way.remove(number);
        let mut starting = Vec::new();
        if !self.under_way.is_empty() {
            return (ended, starting);
        }
        while matches!(self.held.front(), Some(Held::Fence)) {
            self.held.pop_front();
        }
        while let Some(Held::Operation(..)) = self.held.front() {
            if let Some(Held::Operation(number, operation)) = self.held.pop_front() {
                self.under_way.push(number, operation.clone());
                starting.push(operation);
            }
        }
        (ended, starting)
    }

    /// Returns whether an operation that is added now does not start at once.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns whether no operation is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Returns an operation that is under way.
    pub(super) fn under_way(&self, number: u64) -> Option<&T> {
        self.under_way.get(number)
    }

    /// Removes all operations and fences.
    pub(super) fn clear(&mut self) -> Vec<T> {
        let started = self.under_way.take();
        let held = std::mem::take(&mut self.held).into_iter().filter_map(|held| match held {
            Held::Fence => None,
            Held::Operation(_, operation) => Some(operation),
        });
        started.chain(held).collect()
    }

    /// Returns whether every operation with a number below `number` is complete.
    pub(super) fn is_complete_below(&self, number: u64) -> bool {
        let first = self.under_way.first();
        // Operations that are held have greater numbers than one under way, and there is one while some are held.
        first.is_none_or(|first| first >= number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add,
        Fence,
        End(prop::sample::Index),
    }

    proptest! {
        #[test]
        fn operations_start_after_those_before_their_fence(steps in prop::collection::vec(prop_oneof![
            3 => Just(Step::Add),
            1 => Just(Step::Fence),
            4 => any::<prop::sample::Index>().prop_map(Step::End),
        ], 0..200)) {
            let mut window = Window::default();
            // The group of each operation: the number of fences before it.
            let (mut fences, mut group, mut started, mut ended) = (0, vec![], vec![], vec![]);
            let complete_before = |group: &[u32], ended: &[u64], mine: u32| {
                (0..group.len() as u64).all(|other| group[other as usize] >= mine || ended.contains(&other))
            };
            for step in steps {
                match step {
                    Step::Add => {
                        let number = group.len() as u64;
                        prop_assert_eq!(window.next_number(), number);
                        group.push(fences);
                        let holds = window.holds();
                        let now = window.add(number);
                        prop_assert_eq!(now, !holds);
                        prop_assert_eq!(now, complete_before(&group, &ended, fences));
                        started.extend(now.then_some(number));
                    }
                    Step::Fence => {
                        window.fence();
                        fences += 1;
                    }
                    Step::End(which) => {
                        let under_way: Vec<u64> =
                            started.iter().copied().filter(|number| !ended.contains(number)).collect();
                        if under_way.is_empty() {
                            continue;
                        }
                        let number = under_way[which.index(under_way.len())];
                        ended.push(number);
                        let (this, starting) = window.end(number);
                        prop_assert_eq!(this, Some(number));
                        started.extend(starting);
                    }
                }
                // Exactly the operations start that may.
                for number in 0..group.len() as u64 {
                    let may = complete_before(&group, &ended, group[number as usize]);
                    prop_assert_eq!(started.contains(&number), may, "operation {}", number);
                }
                for number in 0..group.len() as u64 {
                    let under_way = started.contains(&number) && !ended.contains(&number);
                    prop_assert_eq!(window.under_way(number), under_way.then_some(&number));
                }
                for number in 0..=group.len() as u64 {
                    let complete = (0..number).all(|before| ended.contains(&before));
                    prop_assert_eq!(window.is_complete_below(number), complete);
                }
                prop_assert!(started.is_sorted());
            }
        }
    }

    #[test]
    fn an_operation_that_stays_keeps_no_room_for_later_ones() {
        let mut window = Window::default();
        window.add(0);
        for number in 1..10_000_u64 {
            window.add(number);
            window.end(number);
        }
        assert!(window.under_way.entries.capacity() < 256, "{}", window.under_way.entries.capacity());
        assert_eq!((window.under_way(0), window.under_way(9_999)), (Some(&0), None));
        assert!(window.is_complete_below(0) && !window.is_complete_below(1));
        window.end(0);
        assert!(window.is_idle() && window.is_complete_below(10_000));
    }
}
