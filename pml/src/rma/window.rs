//! The operations that a process has issued to one target: their numbers, fences, and which are complete.
//!
//! An operation after a fence starts once every operation before the fence is complete. Without a fence, operations are
//! independent of each other.

use std::collections::{BTreeMap, VecDeque};

/// Operations `T` to one target.
pub(super) struct Window<T> {
    next: u64,
    under_way: BTreeMap<u64, T>,
    held: VecDeque<Held<T>>,
}

enum Held<T> {
    Fence,
    Operation(u64, T),
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Window { next: 0, under_way: BTreeMap::new(), held: VecDeque::new() }
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
            self.under_way.insert(number, operation);
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

    /// Removes an operation that is complete. Returns those that start now, in the order in which they were added.
    pub(super) fn end(&mut self, number: u64) -> Vec<T> {
        self.under_way.remove(&number);
        let mut starting = Vec::new();
        if !self.under_way.is_empty() {
            return starting;
        }
        while matches!(self.held.front(), Some(Held::Fence)) {
            self.held.pop_front();
        }
        while let Some(Held::Operation(..)) = self.held.front() {
            if let Some(Held::Operation(number, operation)) = self.held.pop_front() {
                self.under_way.insert(number, operation.clone());
                starting.push(operation);
            }
        }
        starting
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
        self.under_way.get(&number)
    }

    /// Removes all operations and fences.
    pub(super) fn clear(&mut self) -> Vec<T> {
        let started = std::mem::take(&mut self.under_way).into_values();
        let held = std::mem::take(&mut self.held).into_iter().filter_map(|held| match held {
            Held::Fence => None,
            Held::Operation(_, operation) => Some(operation),
        });
        started.chain(held).collect()
    }

    /// Returns whether every operation with a number below `number` is complete.
    pub(super) fn is_complete_below(&self, number: u64) -> bool {
        let first = self.under_way.first_key_value().map(|(first, _)| *first);
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
                        started.extend(window.end(number));
                    }
                }
                // Exactly the operations start that may.
                for number in 0..group.len() as u64 {
                    let may = complete_before(&group, &ended, group[number as usize]);
                    prop_assert_eq!(started.contains(&number), may, "operation {}", number);
                }
                for number in 0..=group.len() as u64 {
                    let complete = (0..number).all(|before| ended.contains(&before));
                    prop_assert_eq!(window.is_complete_below(number), complete);
                }
                prop_assert!(started.is_sorted());
            }
        }
    }
}
