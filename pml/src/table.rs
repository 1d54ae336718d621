//! Transfers under way, named on the wire.

use slab::Slab;

use crate::wire::Id;

/// A table whose keys go to a peer and come back: each is checked, and one whose entry is gone is told from the key
/// that took its place.
pub(crate) struct Table<T> {
    entries: Slab<(u32, T)>,
    generation: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Slab::new(), generation: 0 }
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&mut self, entry: T) -> Id {
        self.generation = self.generation.wrapping_add(1);
        let index = self.entries.insert((self.generation, entry));
        Id(u64::from(self.generation) << 32 | index as u64)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut(id.0 as u32 as usize)?;
        (*generation == (id.0 >> 32) as u32).then_some(entry)
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        self.get_mut(id)?;
        self.entries.try_remove(id.0 as u32 as usize).map(|(_, entry)| entry)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.entries.iter().map(|(index, (generation, _))| Id(u64::from(*generation) << 32 | index as u64)).collect()
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
