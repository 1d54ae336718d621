//! Maps each pattern to the list of its entries.

use std::collections::HashMap;

use ahash::RandomState;

use crate::status::ANY;

/// The source and tag that a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// A rank, or [`ANY`].
    pub(crate) source: i32,
    /// A tag, or [`ANY`], which matches tags of 0 and above.
    pub(crate) tag: i32,
}

/// The number of classes of patterns.
pub(crate) const CLASSES: usize = 4;

impl Pattern {
    /// Returns the class: bit 0 is set for any tag, bit 1 for any source.
    #[inline]
    pub(crate) fn class(self) -> usize {
        usize::from(self.tag == ANY) | usize::from(self.source == ANY) << 1
    }

    /// Returns every pattern that a message fits, by class.
    #[inline]
    pub(crate) fn of_message(source: u32, tag: i32) -> [Option<Pattern>; CLASSES] {
        let source = source as i32;
        let user = tag >= 0;
        [
            Some(Pattern { source, tag }),
            user.then_some(Pattern { source, tag: ANY }),
            Some(Pattern { source: ANY, tag }),
            user.then_some(Pattern { source: ANY, tag: ANY }),
        ]
    }

    #[inline]
    fn key(self) -> u64 {
        u64::from(self.source as u32) << 32 | u64::from(self.tag as u32)
    }

    fn of_key(key: u64) -> Self {
        Pattern { source: (key >> 32) as i32, tag: key as i32 }
    }
}

/// The index of no node.
pub(crate) const NIL: u32 = u32::MAX;

/// The entries of one pattern.
pub(crate) trait List: Default {
    fn is_empty(&self) -> bool;
}

/// The first and last node of a linked list.
pub(crate) struct Linked {
    head: u32,
    tail: u32,
}

impl Default for Linked {
    fn default() -> Self {
        Linked { head: NIL, tail: NIL }
    }
}

impl List for Linked {
    #[inline]
    fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

/// The position of a list in the index. It does not change while the list has nodes.
pub(crate) type Slot = u32;

/// Lists by pattern. Programs repeat their tags, so an empty list is kept for the next entry with its key. Empty lists
/// are dropped together once more than half of all lists are empty. So a program that never repeats a tag costs a
/// constant per entry.
pub(crate) struct Index<L> {
    lists: Vec<L>,
    free: Vec<Slot>,
    by_key: HashMap<u64, Slot, RandomState>,
    /// The last list used in each class. Most programs use it again.
    recent: [(u64, Slot); CLASSES],
    empty: usize,
    #[cfg(test)]
    pub(crate) steps: std::cell::Cell<u64>,
}

/// A key that no pattern has: no source is -2.
const NO_KEY: u64 = (u32::MAX as u64 - 1) << 32;

/// Number of empty lists that are kept in any case.
const KEPT_EMPTY: usize = 64;

impl<L> Default for Index<L> {
    fn default() -> Self {
        Index {
            lists: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::default(),
            recent: [(NO_KEY, NIL); CLASSES],
            empty: 0,
            #[cfg(test)]
            steps: Default::default(),
        }
    }
}

impl<L: List> Index<L> {
    /// Finds the list of a pattern.
    #[inline(always)]
    pub(crate) fn find(&mut self, pattern: Pattern) -> Option<Slot> {
        self.find_in(pattern.class(), pattern)
    }

    /// Finds the list of a pattern of a known class.
    #[inline(always)]
    pub(crate) fn find_in(&mut self, class: usize, pattern: Pattern) -> Option<Slot> {
        debug_assert_eq!(class, pattern.class());
        self.count_step();
        let (key, slot) = self.recent[class];
        if key == pattern.key() { Some(slot) } else { self.look_up(class, pattern.key()) }
    }

    #[inline(never)]
    fn look_up(&mut self, class: usize, key: u64) -> Option<Slot> {
        let slot = *self.by_key.get(&key)?;
        self.recent[class] = (key, slot);
        Some(slot)
    }

    /// Finds the list of a pattern, and creates it if necessary.
    #[inline(always)]
    pub(crate) fn find_or_insert(&mut self, pattern: Pattern) -> Slot {
        match self.find(pattern) {
            Some(slot) => slot,
            None => self.insert(pattern),
        }
    }

    #[cold]
    fn insert(&mut self, pattern: Pattern) -> Slot {
        if self.empty > KEPT_EMPTY && self.empty > self.by_key.len() / 2 {
            self.drop_empty();
        }
        let key = pattern.key();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.lists.push(L::default());
            (self.lists.len() - 1) as Slot
        });
        self.empty += 1;
        self.by_key.insert(key, slot);
        self.recent[pattern.class()] = (key, slot);
        slot
    }

    fn drop_empty(&mut self) {
        let Index { lists, free, by_key, .. } = self;
        by_key.retain(|_, &mut slot| {
            let keep = !lists[slot as usize].is_empty();
            if !keep {
                free.push(slot);
            }
            keep
        });
        self.recent = [(NO_KEY, NIL); CLASSES];
        self.empty = 0;
    }

    /// Returns the list at a slot, which another pattern may use by now.
    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> Option<&L> {
        self.lists.get(slot as usize)
    }

    /// Changes a list, and keeps the count of empty lists correct.
    #[inline(always)]
    pub(crate) fn change<R>(&mut self, slot: Slot, act: impl FnOnce(&mut L) -> R) -> R {
        self.count_step();
        let list = &mut self.lists[slot as usize];
        let before = list.is_empty();
        let result = act(list);
        match (before, list.is_empty()) {
            (true, false) => self.empty -= 1,
            (false, true) => self.empty += 1,
            _ => {}
        }
        result
    }

    /// Removes the first entry of a list. `pop` returns the entry, and whether the list is empty now.
    #[inline(always)]
    pub(crate) fn pop<R>(&mut self, slot: Slot, pop: impl FnOnce(&mut L) -> Option<(R, bool)>) -> Option<R> {
        self.count_step();
        let (first, emptied) = pop(self.lists.get_mut(slot as usize)?)?;
        self.empty += usize::from(emptied);
        Some(first)
    }

    /// Returns every pattern that has a list, with the list's slot.
    pub(crate) fn patterns(&self) -> Vec<(Pattern, Slot)> {
        self.by_key.iter().map(|(&key, &slot)| (Pattern::of_key(key), slot)).collect()
    }

    /// Drops every list.
    pub(crate) fn clear(&mut self) {
        *self = Index::default();
    }

    #[inline]
    fn count_step(&self) {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Checks the count of empty lists, and that every list has a key or is free.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let empty = self.by_key.values().filter(|&&slot| self.lists[slot as usize].is_empty()).count();
        assert_eq!(empty, self.empty);
        assert_eq!(self.by_key.len() + self.free.len(), self.lists.len());
    }
}

impl Index<Linked> {
    #[inline]
    pub(crate) fn head(&self, slot: Slot) -> u32 {
        self.lists[slot as usize].head
    }

    /// Appends `node`. Returns the node that was last before, or [`NIL`].
    #[inline]
    pub(crate) fn push(&mut self, slot: Slot, node: u32) -> u32 {
        self.change(slot, |list| {
            let before = std::mem::replace(&mut list.tail, node);
            if before == NIL {
                list.head = node;
            }
            before
        })
    }

    /// Removes a node with these neighbours from the list's ends. The caller relinks the neighbours.
    #[inline]
    pub(crate) fn unlink(&mut self, slot: Slot, before: u32, after: u32) {
        self.change(slot, |list| {
            if before == NIL {
                list.head = after;
            }
            if after == NIL {
                list.tail = before;
            }
        });
    }
}
