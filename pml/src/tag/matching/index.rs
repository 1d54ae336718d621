//! From what a receive may ask for to the list of entries that answer it.

use std::collections::HashMap;

use ahash::RandomState;

use crate::status::ANY;

/// What a receive asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// A rank, or [`ANY`].
    pub(crate) source: i32,
    /// A tag, or [`ANY`], which stands for those of 0 and above.
    pub(crate) tag: i32,
}

/// The four kinds of pattern.
pub(crate) const CLASSES: usize = 4;

impl Pattern {
    /// Bit 0: any tag; bit 1: any source.
    #[inline]
    pub(crate) fn class(self) -> usize {
        usize::from(self.tag == ANY) | usize::from(self.source == ANY) << 1
    }

    /// Every pattern that a message fits, by class.
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

/// No node.
pub(crate) const NIL: u32 = u32::MAX;

/// What is kept for a pattern.
pub(crate) trait List: Default {
    fn is_empty(&self) -> bool;
}

/// First and last node of a list whose nodes link among themselves.
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

/// A list's place in the index; stays while the list has nodes.
pub(crate) type Slot = u32;

/// Lists by pattern. A list that runs empty is kept for the next entry with its key, as programs repeat their tags;
/// once the empty ones outnumber the others by far they are dropped together, so that a program which never repeats
/// a tag costs no more than a constant per entry.
pub(crate) struct Index<L> {
    lists: Vec<L>,
    free: Vec<Slot>,
    by_key: HashMap<u64, Slot, RandomState>,
    /// The list last used in each class: most programs repeat themselves.
    recent: [(u64, Slot); CLASSES],
    empty: usize,
    #[cfg(test)]
    pub(crate) steps: std::cell::Cell<u64>,
}

/// No pattern has this key: no source is -2.
const NO_KEY: u64 = (u32::MAX as u64 - 1) << 32;

/// Empty lists that are kept in any case.
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
    /// The list of a pattern, if it has one.
    #[inline(always)]
    pub(crate) fn find(&mut self, pattern: Pattern) -> Option<Slot> {
        self.find_in(pattern.class(), pattern)
    }

    /// As [`find`](Self::find), by who knows the pattern's class.
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

    /// The list of a pattern, made if it has none.
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

    /// A list that there is, or was.
    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> Option<&L> {
        self.lists.get(slot as usize)
    }

    /// Changes a list.
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

    /// Takes from a list's front; `pop` says with what it yields whether the list is empty now.
    #[inline(always)]
    pub(crate) fn pop<R>(&mut self, slot: Slot, pop: impl FnOnce(&mut L) -> Option<(R, bool)>) -> Option<R> {
        self.count_step();
        let (first, emptied) = pop(self.lists.get_mut(slot as usize)?)?;
        self.empty += usize::from(emptied);
        Some(first)
    }

    /// Every pattern that has a list, and where that is.
    pub(crate) fn patterns(&self) -> Vec<(Pattern, Slot)> {
        self.by_key.iter().map(|(&key, &slot)| (Pattern::of_key(key), slot)).collect()
    }

    /// Forgets every list.
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

    /// Whether the empty lists are as many as it thinks, and every list has its key.
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

    /// Links `node` behind the last; returns which that was.
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

    /// Takes a node with these neighbours out; the caller relinks the neighbours themselves.
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
