//! Transfers under way, named on the wire.

use slab::Slab;

use crate::wire::Id;

/// A table whose keys go to a peer and come back: each is checked, and one whose entry is gone is told from the key
/// that took its place.
pub(crate) struct Table<T> {
    entries: Slab<T>,
    /// Of each place, the latest. Apart: with the entry, which is large, it would have to be copied once more.
    generations: Vec<u32>,
    generation: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Slab::new(), generations: Vec::new(), generation: 0 }
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&mut self, entry: T) -> Id {
        self.generation = self.generation.wrapping_add(1);
        let index = self.entries.insert(entry);
        match self.generations.get_mut(index) {
            Some(generation) => *generation = self.generation,
            // Places are given in their order.
            None => self.generations.push(self.generation),
        }
        Id(u64::from(self.generation) << 32 | index as u64)
    }

    /// Where the entry is, or was.
    #[inline]
    fn place(&self, id: Id) -> Option<usize> {
        let index = id.0 as u32 as usize;
        (*self.generations.get(index)? == (id.0 >> 32) as u32).then_some(index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.place(id).and_then(|index| self.entries.get_mut(index))
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        self.place(id).and_then(|index| self.entries.try_remove(index))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        let id = |index: usize| Id(u64::from(self.generations[index]) << 32 | index as u64);
        self.entries.iter().map(|(index, _)| id(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_its_entry_harmlessly() {
        let mut table = Table::default();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!(second.0 as u32, first.0 as u32, "the place is used again");
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(Id(u64::MAX)), None);
        assert_eq!(table.get_mut(second), Some(&mut 'b'));
        assert_eq!(table.ids(), [second]);
    }
}
