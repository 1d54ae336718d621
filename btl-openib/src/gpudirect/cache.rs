//! A cache of device memory registrations by allocation. It needs no device.
//!
//! An allocation is identified by the driver's id, which the caller has just queried. Memory that replaces freed memory
//! has another id, so it never finds an old registration. A registration keeps freed memory from its next owner. So
//! registrations of freed allocations are dropped when something is added, and from time to time when something is
//! found.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cableway_common_cuda::Allocation;

/// The number of allocations in the cache, registered or refused.
const MOST: usize = 1024;
/// The unit of registrations: devices map at least this much at a time.
const GRANULE: usize = 64 << 10;
/// After this many look-ups, the next one checks for freed allocations.
const LOOK: u64 = 256;

pub(super) struct Cache<R> {
    /// The limit in bytes.
    limit: usize,
    known: HashMap<u64, Entry<R>>,
    bytes: usize,
    /// Counts requests, to find the least recently used entry.
    clock: u64,
}

struct Entry<R> {
    /// An address in the allocation, at which the driver is asked whether the allocation still exists.
    base: usize,
    /// `None` if the allocation cannot be registered.
    registered: Option<(Range<usize>, Arc<R>)>,
    used: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<R> {
    Registered(Arc<R>),
    Refused,
    Nothing,
}

impl<R> Cache<R> {
    pub(super) fn new(limit: usize) -> Self {
        Cache { limit, known: HashMap::new(), bytes: 0, clock: 0 }
    }

    /// Finds a registration that contains `wanted`, a part of the allocation. `alive` returns whether the allocation of
    /// an id is still at an address.
    pub(super) fn find(
        &mut self,
        allocation: &Allocation,
        wanted: &Range<usize>,
        alive: impl Fn(u64, usize) -> bool,
    ) -> Found<R> {
        self.clock += 1;
        let found = match self.known.get_mut(&allocation.id) {
            None => Found::Nothing,
            Some(entry) => {
                entry.used = self.clock;
                match &entry.registered {
                    None => Found::Refused,
                    Some((range, kept)) if range.start <= wanted.start && wanted.end <= range.end => {
                        Found::Registered(Arc::clone(kept))
                    }
                    Some(_) => Found::Nothing,
                }
            }
        };
        if matches!(found, Found::Nothing) || self.clock.is_multiple_of(LOOK) {
            let gone = |(id, entry): (&u64, &Entry<R>)| (!alive(*id, entry.base)).then_some(*id);
            let gone: Vec<u64> = self.known.iter().filter_map(gone).collect();
            gone.into_iter().for_each(|id| self.forget(id));
        }
        found
    }

    /// Returns the range to register in order to contain `wanted`: the whole allocation if it is small, else also the
    /// range that is registered already. Makes room for it.
    pub(super) fn room_for(&mut self, allocation: &Allocation, wanted: &Range<usize>) -> Range<usize> {
        let all = allocation.base..allocation.base + allocation.len;
        let granules = |range: &Range<usize>| {
            let end = range.end.checked_next_multiple_of(GRANULE).unwrap_or(range.end);
            (range.start & !(GRANULE - 1)).max(all.start)..end.min(all.end)
        };
        let before = self.known.get(&allocation.id).and_then(|entry| entry.registered.as_ref());
        let both = before.map(|(before, _)| before.start.min(wanted.start)..before.end.max(wanted.end));
        let range = match both {
            _ if all.len() <= self.limit / 4 => all.clone(),
            Some(both) if granules(&both).len() <= self.limit => granules(&both),
            _ => granules(wanted),
        };
        self.forget(allocation.id);
        while self.limit < self.bytes + range.len() && self.evict() {}
        range
    }

    /// Caches a registration if there is room.
    pub(super) fn insert(&mut self, allocation: &Allocation, range: Range<usize>, registration: &Arc<R>) {
        if self.bytes + range.len() <= self.limit {
            self.bytes += range.len();
            self.add(allocation, Some((range, Arc::clone(registration))));
        }
    }

    /// Records that an allocation cannot be registered.
    pub(super) fn refuse(&mut self, allocation: &Allocation) {
        self.forget(allocation.id);
        self.add(allocation, None);
    }

    /// Drops every registration. Returns false if there was none.
    pub(super) fn clear(&mut self) -> bool {
        let any = self.bytes != 0;
        self.known.retain(|_, entry| entry.registered.is_none());
        self.bytes = 0;
        any
    }

    fn add(&mut self, allocation: &Allocation, registered: Option<(Range<usize>, Arc<R>)>) {
        while self.known.len() >= MOST && self.evict() {}
        let entry = Entry { base: allocation.base, registered, used: self.clock };
        self.known.insert(allocation.id, entry);
    }

    /// Drops the least recently used entry. Returns false if there is none.
    fn evict(&mut self) -> bool {
        let oldest = self.known.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id);
        oldest.inspect(|id| self.forget(*id)).is_some()
    }

    fn forget(&mut self, id: u64) {
        if let Some(Entry { registered: Some((range, _)), .. }) = self.known.remove(&id) {
            self.bytes -= range.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Allocations with unique ids.
    #[derive(Default)]
    struct Driver {
        /// By address: length and id.
        live: RefCell<BTreeMap<usize, (usize, u64)>>,
    }

    impl Driver {
        fn has(&self, id: u64, at: usize) -> bool {
            self.live
                .borrow()
                .range(..=at)
                .next_back()
                .is_some_and(|(base, (len, known))| *known == id && at < base + len)
        }
    }

    /// The registered range.
    #[derive(Debug, PartialEq, Eq)]
    struct Pinned(u64, Range<usize>);

    #[derive(Clone, Debug)]
    enum Step {
        /// In a slot, which is freed first.
        Allocate(usize, usize),
        Free(usize),
        /// A part of the allocation in a slot, in thousandths.
        Send(usize, usize, usize),
        Clear,
    }

    const SLOT: usize = 16 << 20;

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_usize..6, 1_usize..SLOT).prop_map(|(slot, len)| Step::Allocate(slot, len)),
            2 => (0_usize..6).prop_map(Step::Free),
            12 => (0_usize..6, 0_usize..1000, 1_usize..1000).prop_map(|(slot, first, len)| Step::Send(slot, first, len)),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn registrations_cover_the_present_memory(steps in prop::collection::vec(step(), 1..80),
                                                         limit in 0_usize..3 * SLOT) {
            let driver = Driver::default();
            let mut cache = Cache::new(limit);
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Allocate(slot, len) => {
                        next += 1;
                        driver.live.borrow_mut().insert(slot * SLOT, (len, next));
                    }
                    Step::Free(slot) => _ = driver.live.borrow_mut().remove(&(slot * SLOT)),
                    Step::Clear => _ = cache.clear(),
                    Step::Send(slot, first, part) => {
                        let base = slot * SLOT;
                        let Some((len, id)) = driver.live.borrow().get(&base).copied() else { continue };
                        let allocation = Allocation { base, len, id };
                        let start = base + len * first / 1000;
                        let wanted = start..(start + len * part / 1000).clamp(start + 1, base + len);
                        let pinned = match cache.find(&allocation, &wanted, |id, at| driver.has(id, at)) {
                            Found::Registered(pinned) => pinned,
                            Found::Refused => unreachable!("none was"),
                            Found::Nothing => {
                                let range = cache.room_for(&allocation, &wanted);
                                prop_assert!(range.start >= base && range.end <= base + len);
                                let pinned = Arc::new(Pinned(id, range.clone()));
                                cache.insert(&allocation, range, &pinned);
                                // Registrations of freed allocations are dropped.
                                prop_assert!(cache.known.iter().all(|(id, entry)| driver.has(*id, entry.base)));
                                pinned
                            }
                        };
                        prop_assert_eq!(pinned.0, id);
                        prop_assert!(pinned.1.start <= wanted.start && wanted.end <= pinned.1.end);
                    }
                }
                let kept = cache.known.values().filter_map(|entry| entry.registered.as_ref());
                prop_assert_eq!(kept.map(|(range, _)| range.len()).sum::<usize>(), cache.bytes);
                prop_assert!(cache.bytes <= limit);
            }
        }
    }

    #[test]
    fn all_of_a_small_allocation_is_registered_at_once_and_parts_of_a_large_one_grow() {
        let mut cache = Cache::<()>::new(4 << 20);
        let small = Allocation { base: 1 << 30, len: 1 << 20, id: 1 };
        assert_eq!(cache.room_for(&small, &(small.base + 5..small.base + 6)), small.base..small.base + small.len);
        let large = Allocation { base: 2 << 30, len: (3 << 20) + 5, id: 2 };
        let first = cache.room_for(&large, &(large.base + 70_000..large.base + 70_001));
        assert_eq!(first, large.base + (64 << 10)..large.base + (128 << 10));
        cache.insert(&large, first, &Arc::new(()));
        let last = large.base + large.len;
        assert_eq!(cache.room_for(&large, &(last - 1..last)), large.base + (64 << 10)..last);
        assert_eq!(cache.bytes, 0, "what it takes the place of is given up");
    }

    #[test]
    fn refused_registrations_are_remembered_until_the_memory_is_freed() {
        let mut cache = Cache::<()>::new(1 << 20);
        let pool = Allocation { base: 4096, len: 4096, id: 7 };
        let (wanted, alive) = (pool.base..pool.base + 1, |_, _| true);
        cache.refuse(&pool);
        assert_eq!(cache.find(&pool, &wanted, alive), Found::Refused);
        assert!(!cache.clear());
        let other = Allocation { id: 8, ..pool };
        assert_eq!(cache.find(&other, &wanted, |id, _| id == 8), Found::Nothing);
        assert!(cache.known.is_empty());
        for id in 0..2 * MOST as u64 {
            let allocation = Allocation { id, ..pool };
            cache.room_for(&allocation, &wanted);
            cache.insert(&allocation, wanted.clone(), &Arc::new(()));
        }
        assert!(cache.known.len() <= MOST && cache.bytes == cache.known.len());
    }
}
