//! Tables of transfers under way, which headers name by key.

use slab::Slab;

use crate::wire::Id;

/// A table whose keys go to a peer and come back. Each key is checked: a key whose entry is gone differs from the key
/// that reuses its slot.
pub(crate) struct Table<T> {
    entries: Slab<T>,
    /// The latest key of each slot. Separate from the large entries, so that a change does not copy them.
    generations: Vec<u32>,
    generation: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Slab::new(), generations: Vec::new(), generation: 0 }
    }
}

impl<T> Table<T> {
    #[inline]
    pub(crate) fn insert(&mut self, entry: T) -> Id {
        self.generation = self.generation.wrapping_add(1);
        let index = self.entries.insert(entry);
        match self.generations.get_mut(index) {
            Some(generation) => *generation = self.generation,
            // New slots come in order.
            None => self.generations.push(self.generation),
        }
        self.id(index)
    }

    /// Returns the slot of a current key.
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

    fn id(&self, index: usize) -> Id {
        Id(u64::from(self.generations[index]) << 32 | index as u64)
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.entries.iter().map(|(index, _)| self.id(index)).collect()
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
