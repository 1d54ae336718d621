//! Tables of transfers under way, which headers name by key.

use slab::Slab;

use crate::wire::Id;

/// A table whose keys go to a peer and come back. Each key is checked: a key whose entry is gone differs from the key
/// that reuses its slot.
pub(crate) struct Table<T> {
    /// `None` where a key is reserved and has no entry yet.
    entries: Slab<Option<T>>,
    reserved: usize,
    /// The latest key of each slot. Separate from the large entries, so that a change does not copy them.
    generations: Vec<u32>,
    generation: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Slab::new(), reserved: 0, generations: Vec::new(), generation: 0 }
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&mut self, entry: T) -> Id {
        self.place_entry(Some(entry))
    }

    /// Reserves a key. Its entry may come later.
    pub(crate) fn reserve(&mut self) -> Id {
        self.reserved += 1;
        self.place_entry(None)
    }

    /// Sets the entry of a reserved key, once.
    pub(crate) fn fill(&mut self, id: Id, entry: T) {
        if let Some(place @ None) = self.place(id).and_then(|index| self.entries.get_mut(index)) {
            *place = Some(entry);
            self.reserved -= 1;
        }
    }

    /// Releases a reserved key that has no entry.
    pub(crate) fn release(&mut self, id: Id) {
        if let Some(index) = self.place(id)
            && let Some(None) = self.entries.get(index)
        {
            self.entries.remove(index);
            self.reserved -= 1;
        }
    }

    #[inline]
    fn place_entry(&mut self, entry: Option<T>) -> Id {
        self.generation = self.generation.wrapping_add(1);
        let index = self.entries.insert(entry);
        match self.generations.get_mut(index) {
            Some(generation) => *generation = self.generation,
            // New slots come in order.
            None => self.generations.push(self.generation),
        }
        Id(u64::from(self.generation) << 32 | index as u64)
    }

    /// Returns the slot of a current key.
    #[inline]
    fn place(&self, id: Id) -> Option<usize> {
        let index = id.0 as u32 as usize;
        (*self.generations.get(index)? == (id.0 >> 32) as u32).then_some(index)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.place(id).and_then(|index| self.entries.get_mut(index)?.as_mut())
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        let index = self.place(id)?;
        // A reserved key stays reserved.
        self.entries.get(index)?.as_ref()?;
        self.entries.try_remove(index)?
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == self.reserved
    }

    /// Returns the key of an entry for which `is` returns true.
    pub(crate) fn find(&self, is: impl Fn(&T) -> bool) -> Option<Id> {
        let found = self.entries.iter().find(|(_, entry)| entry.as_ref().is_some_and(&is))?;
        Some(self.id(found.0))
    }

    fn id(&self, index: usize) -> Id {
        Id(u64::from(self.generations[index]) << 32 | index as u64)
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.entries.iter().filter(|(_, entry)| entry.is_some()).map(|(index, _)| self.id(index)).collect()
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
        assert_eq!((table.find(|&entry| entry == 'b'), table.find(|&entry| entry == 'a')), (Some(second), None));
    }

    #[test]
    fn a_key_can_be_told_before_its_entry_is_there() {
        let mut table = Table::default();
        let (first, second) = (table.reserve(), table.reserve());
        assert!(table.is_empty() && table.ids().is_empty() && table.find(|_| true).is_none());
        assert!(table.get_mut(first).is_none() && table.remove(first).is_none());
        table.fill(first, 'a');
        table.fill(first, 'b');
        assert_eq!(table.get_mut(first), Some(&mut 'a'), "an entry that is there stays");
        table.release(first);
        assert_eq!(table.remove(first), Some('a'));
        table.release(second);
        table.fill(second, 'c');
        assert_eq!(table.get_mut(second), None);
        assert!(table.is_empty());
        let third = table.insert('d');
        table.release(third);
        assert_eq!(table.ids(), [third]);
    }
}
