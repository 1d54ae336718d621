//! The allocations that are mapped, and those that were met before.

/// The largest allocation that is mapped: a mapping may keep it when it is freed.
pub(super) const LARGEST: usize = 64 << 20;
/// Most allocations that are, and most bytes of all of them.
const MOST: usize = 16;
const MOST_BYTES: usize = 256 << 20;
/// Allocations that are remembered to have been met, or refused.
const REMEMBERED: usize = 64;

/// An allocation and its mapping.
pub(super) struct Entry<V> {
    pub(super) id: u64,
    /// The device address.
    pub(super) base: u64,
    pub(super) len: usize,
    pub(super) view: V,
}

/// Bounded; what was not used for longest goes first.
pub(super) struct Cache<V> {
    /// The one used last comes last.
    entries: Vec<Entry<V>>,
    /// Ids, and whether they were refused; each in the place that it chooses.
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

    /// Notes an allocation, and checks whether it was met before.
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

    /// Remembers that it cannot be mapped.
    pub(super) fn refuse(&mut self, id: u64) {
        self.met[id as usize % REMEMBERED] = (id, true);
    }

    /// Adds an allocation of at most [`LARGEST`] bytes, in place of others if need be.
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

    /// Lets go of all that are not there any more.
    pub(super) fn retain(&mut self, is_there: impl Fn(u64, u64) -> bool) {
        self.entries.retain(|entry| is_there(entry.id, entry.base));
    }

    /// Looks at one, each time at another, and lets go of it if it is not there any more.
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
    fn it_is_bounded_by_count_and_bytes() {
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
    fn an_allocation_is_mapped_at_the_second_meeting() {
        let mut cache = Cache::<u64>::default();
        assert!(!cache.meet(7) && cache.meet(7) && cache.meet(7));
        assert!(!cache.has_refused(7));
        cache.refuse(7);
        assert!(cache.has_refused(7));
        // One that takes its place.
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
