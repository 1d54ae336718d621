//! Registrations of device memory that are kept, by the allocation that they are of. Free of devices.
//!
//! An allocation is known by the driver's id, which the caller has just asked for: memory that took the place of freed
//! memory has another, so that no registration of the old is ever found for it. What was freed is let go of whenever
//! something is added, and now and then when something is found: the registration keeps the memory from its next owner.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cableway_common_cuda::Allocation;

/// Allocations that are remembered, registered or refused.
const MOST: usize = 1024;
/// What devices map at a time, at the least.
const GRANULE: usize = 64 << 10;
/// So often something is found before it is asked what was freed.
const LOOK: u64 = 256;

pub(super) struct Cache<R> {
    /// Bytes that may be kept.
    limit: usize,
    known: HashMap<u64, Entry<R>>,
    bytes: usize,
    /// Counts requests: which was used last.
    clock: u64,
}

struct Entry<R> {
    /// An address of the allocation, at which the driver is asked whether it is still there.
    base: usize,
    /// None: it cannot be registered.
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

    /// A registration that has all of `wanted`, a part of the allocation. `alive` tells whether the allocation of an id
    /// is still at an address.
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

    /// What to register in order to have `wanted`: all of the allocation where that is not much, else what was
    /// registered of it, too. Makes room for it.
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

    /// Keeps a registration, if there is room for it.
    pub(super) fn insert(&mut self, allocation: &Allocation, range: Range<usize>, registration: &Arc<R>) {
        if self.bytes + range.len() <= self.limit {
            self.bytes += range.len();
            self.add(allocation, Some((range, Arc::clone(registration))));
        }
    }

    /// Remembers that an allocation cannot be registered.
    pub(super) fn refuse(&mut self, allocation: &Allocation) {
        self.forget(allocation.id);
        self.add(allocation, None);
    }

    /// Gives up every registration. False: there was none.
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

    /// Gives up what was used longest ago. False: there is nothing.
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

    /// Allocations, of which the driver gives no id twice.
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

    /// What was registered.
    #[derive(Debug, PartialEq, Eq)]
    struct Pinned(u64, Range<usize>);

    #[derive(Clone, Debug)]
    enum Step {
        /// In a slot, which is freed first.
        Allocate(usize, usize),
        Free(usize),
        /// A part of what is in a slot, in thousandths.
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
                                // What was freed is let go of.
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
