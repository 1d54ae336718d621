//! From what a receive may ask for to the list of entries that answer it.

use std::collections::HashMap;

use ahash::RandomState;

use crate::request::ANY;

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
}

/// No node.
pub(crate) const NIL: u32 = u32::MAX;

/// First and last node of a list; its nodes link among themselves.
#[derive(Clone, Copy)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

/// A list's place in the index; stays while the list has nodes.
pub(crate) type Slot = u32;

/// Lists by pattern. A list that runs empty is kept for the next entry with its key, as programs repeat their tags;
/// once the empty ones outnumber the others by far they are dropped together, so that a program which never repeats
/// a tag costs no more than a constant per entry.
pub(crate) struct Index {
    lists: Vec<List>,
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

impl Default for Index {
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

impl Index {
    /// The list of a pattern, if it has one.
    #[inline]
    pub(crate) fn find(&mut self, pattern: Pattern) -> Option<Slot> {
        self.count_step();
        let key = pattern.key();
        let recent = &mut self.recent[pattern.class()];
        if recent.0 == key {
            return Some(recent.1);
        }
        let slot = *self.by_key.get(&key)?;
        *recent = (key, slot);
        Some(slot)
    }

    /// The list of a pattern, made if it has none.
    #[inline]
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
        let list = List { head: NIL, tail: NIL };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.lists[slot as usize] = list;
                slot
            }
            None => {
                self.lists.push(list);
                (self.lists.len() - 1) as Slot
            }
        };
        self.empty += 1;
        self.by_key.insert(key, slot);
        self.recent[pattern.class()] = (key, slot);
        slot
    }

    fn drop_empty(&mut self) {
        let Index { lists, free, by_key, .. } = self;
        by_key.retain(|_, &mut slot| {
            let keep = lists[slot as usize].head != NIL;
            if !keep {
                free.push(slot);
            }
            keep
        });
        self.recent = [(NO_KEY, NIL); CLASSES];
        self.empty = 0;
    }

    #[inline]
    pub(crate) fn head(&self, slot: Slot) -> u32 {
        self.lists[slot as usize].head
    }

    /// Links `node` behind the last; returns which that was.
    #[inline]
    pub(crate) fn push(&mut self, slot: Slot, node: u32) -> u32 {
        self.count_step();
        let list = &mut self.lists[slot as usize];
        let before = std::mem::replace(&mut list.tail, node);
        if before == NIL {
            list.head = node;
            self.empty -= 1;
        }
        before
    }

    /// Takes a node with these neighbours out; the caller relinks the neighbours themselves.
    #[inline]
    pub(crate) fn unlink(&mut self, slot: Slot, before: u32, after: u32) {
        self.count_step();
        let list = &mut self.lists[slot as usize];
        if before == NIL {
            list.head = after;
        }
        if after == NIL {
            list.tail = before;
        }
        if list.head == NIL {
            self.empty += 1;
        }
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
        let empty = self.by_key.values().filter(|&&slot| self.lists[slot as usize].head == NIL).count();
        assert_eq!(empty, self.empty);
        assert_eq!(self.by_key.len() + self.free.len(), self.lists.len());
    }
}
