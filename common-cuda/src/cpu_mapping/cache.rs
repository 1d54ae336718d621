//! The cache of CPU mappings, and of the allocations that were used once.

/// The largest allocation that is mapped: a mapping may keep freed memory allocated.
pub(super) const LARGEST: usize = 64 << 20;
/// The limits of the cache: number of mapped allocations, and their bytes.
const MOST: usize = 16;
const MOST_BYTES: usize = 256 << 20;
/// The number of remembered allocations that were used once or refused.
const REMEMBERED: usize = 64;

/// An allocation and its mapping.
pub(super) struct Entry<V> {
    pub(super) id: u64,
    /// The device address.
    pub(super) base: u64,
    pub(super) len: usize,
    pub(super) view: V,
}

/// The mapped allocations. The cache is bounded; the least recently used mapping is closed first.
pub(super) struct Cache<V> {
    /// In the order of use, the most recent last.
    entries: Vec<Entry<V>>,
    /// Ids of allocations, and whether they were refused. An id selects its place.
    met: [(u64, bool); REMEMBERED],
    turn: usize,
}

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Cache { entries: Vec::new(), met: [(0, false); REMEMBERED], turn: 0 }
    }
}

impl<V> Cache<V> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn holds(&self, id: u64) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    pub(super) fn find(&mut self, id: u64) -> Option<&Entry<V>> {
        let index = self.entries.iter().rposition(|entry| entry.id == id)?;
        self.entries[index..].rotate_left(1);
        self.entries.last()
    }

    /// Records the use of an allocation. Returns whether it was used before.
    pub(super) fn meet(&mut self, id: u64) -> bool {
        let place = &mut self.met[id as usize % REMEMBERED];
        let again = place.0 == id;
        if !again {
            *place = (id, false);
        }
        again
    }

    pub(super) fn has_refused(&self, id: u64) -> bool {
        self.met[id as usize % REMEMBERED] == (id, true)
    }

    /// Records that an allocation cannot be mapped.
    pub(super) fn refuse(&mut self, id: u64) {
        self.met[id as usize % REMEMBERED] = (id, true);
    }

    /// Adds an allocation of at most [`LARGEST`] bytes, and closes others if necessary.
    pub(super) fn add(&mut self, entry: Entry<V>) -> &Entry<V> {
        let full = |entries: &[Entry<V>]| {
            let bytes: usize = entries.iter().map(|entry| entry.len).sum();
            entries.len() >= MOST || bytes + entry.len > MOST_BYTES
        };
        let excess = (0..=self.entries.len()).find(|&gone| !full(&self.entries[gone..])).unwrap_or(self.entries.len());
        self.entries.drain(..excess);
        self.entries.push(entry);
        &self.entries[self.entries.len() - 1]
    }

    /// Closes the mappings of all freed allocations.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64, u64) -> bool) {
        self.entries.retain(|entry| is_there(entry.id, entry.base));
    }

    /// Checks one mapping, the next one each time, and closes it if its allocation was freed.
    pub(super) fn check_next(&mut self, is_there: impl Fn(u64, u64) -> bool) {
        self.turn = if self.turn + 1 < self.entries.len() { self.turn + 1 } else { 0 };
        if self.entries.get(self.turn).is_some_and(|entry| !is_there(entry.id, entry.base)) {
            self.entries.remove(self.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, len: usize) -> Entry<u64> {
        Entry { id, base: id << 32, len, view: id }
    }

    fn ids(cache: &Cache<u64>) -> Vec<u64> {
        cache.entries.iter().map(|entry| entry.id).collect()
    }

    #[test]
    fn the_cache_is_bounded_by_count_and_bytes() {
        let mut cache = Cache::default();
        for id in 1..=MOST as u64 {
            cache.add(entry(id, 1000));
        }
        assert_eq!(cache.len(), MOST);
        assert_eq!(cache.find(1).map(|entry| entry.view), Some(1));
        cache.add(entry(100, 1000));
        assert!(cache.len() == MOST && cache.find(2).is_none() && cache.find(1).is_some(), "not used for longest");
        for id in 200..210 {
            cache.add(entry(id, LARGEST));
        }
        assert_eq!(ids(&cache), [206, 207, 208, 209]);
    }

    #[test]
    fn an_allocation_is_known_at_its_second_use() {
        let mut cache = Cache::<u64>::default();
        assert!(!cache.meet(7) && cache.meet(7) && cache.meet(7));
        assert!(!cache.has_refused(7));
        cache.refuse(7);
        assert!(cache.has_refused(7));
        // A new allocation at the same address.
        assert!(!cache.meet(7 + REMEMBERED as u64) && cache.meet(7 + REMEMBERED as u64));
    }

    #[test]
    fn freed_mappings_are_found_gradually() {
        let mut cache = Cache::default();
        for id in 1..=8 {
            cache.add(entry(id, 10));
        }
        cache.retain(|id, base| id != 4 && base == id << 32);
        assert_eq!(ids(&cache), [1, 2, 3, 5, 6, 7, 8]);
        (0..16).for_each(|_| cache.check_next(|id, _| id % 2 == 1));
        assert_eq!(ids(&cache), [1, 3, 5, 7]);
        (0..16).for_each(|_| cache.check_next(|_, _| false));
        assert_eq!(cache.len(), 0);
    }
}
