//! Caches registrations by their pages. It needs no device: the caller defines a registration and how to make one.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::watch::{Covered, Watch};

/// Disjoint ranges, each with its registration.
pub(super) struct Cache<R> {
    watch: Arc<Watch>,
    /// The largest number of bytes to keep.
    limit: usize,
    by_start: BTreeMap<usize, Entry<R>>,
    bytes: usize,
    /// Counts requests, to find the least recently used registration.
    clock: u64,
}

struct Entry<R> {
    end: usize,
    registration: Arc<R>,
    /// The device may also write there.
    writable: bool,
    covered: Covered,
    used: u64,
}

impl<R> Cache<R> {
    pub(super) fn new(watch: Arc<Watch>, limit: usize) -> Self {
        Cache { watch, limit, by_start: BTreeMap::new(), bytes: 0, clock: 0 }
    }

    /// Returns a registration of at least these pages: a cached one, or a new one from `make`, which is cached if
    /// possible. `make` is called with the pages and whether the device may write to them.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn get(
        &mut self,
        pages: &Range<usize>,
        writable: bool,
        make: impl Fn(&Range<usize>, bool) -> io::Result<R>,
    ) -> io::Result<Arc<R>> {
        self.clock += 1;
        if let Some(entry) = self.by_start.range_mut(..=pages.start).next_back().map(|(_, entry)| entry)
            && pages.end <= entry.end
            && (entry.writable || !writable)
            && entry.covered.still()
        {
            entry.used = self.clock;
            return Ok(Arc::clone(&entry.registration));
        }
        if pages.len() > self.limit {
            return make(pages, writable).map(Arc::new);
        }
        let reports = self.watch.reports();
        let (all, all_writable) = self.absorb(pages, writable);
        if (&all, all_writable) != (pages, writable)
            && let Ok(Some(registration)) = self.add(&all, all_writable, &make)
        {
            // The range contains other pages besides the requested ones. A report since the last check may concern such
            // pages that were about to be discarded, yet are pinned now.
            if self.watch.reports() == reports {
                return Ok(registration);
            }
            self.remove(all.start);
        }
        if let Some(registration) = self.add(pages, writable, &make)? {
            return Ok(registration);
        }
        make(pages, writable).map(Arc::new)
    }

    /// Drops everything that is cached. Returns false if the cache was empty.
    pub(super) fn clear(&mut self) -> bool {
        let any = !self.by_start.is_empty();
        while self.evict() {}
        any
    }

    /// Removes overlapping ranges, and returns the range that replaces them. Ranges that share pages merge, so that
    /// they do not replace each other for ever.
    fn absorb(&mut self, pages: &Range<usize>, writable: bool) -> (Range<usize>, bool) {
        let (mut all, mut all_writable) = (pages.clone(), writable);
        while let Some(start) = self.overlapping(pages) {
            let Some(entry) = self.remove(start) else { break };
            let both = all.start.min(start)..all.end.max(entry.end);
            if both.len() <= self.limit && entry.covered.still() {
                all = both;
                all_writable |= entry.writable;
            }
        }
        (all, all_writable)
    }

    fn overlapping(&self, pages: &Range<usize>) -> Option<usize> {
        let (&start, entry) = self.by_start.range(..pages.end).next_back()?;
        (pages.start < entry.end).then_some(start)
    }

    /// Makes a registration and caches it. Returns `None` if these pages cannot be watched.
    fn add(
        &mut self,
        pages: &Range<usize>,
        writable: bool,
        make: impl Fn(&Range<usize>, bool) -> io::Result<R>,
    ) -> io::Result<Option<Arc<R>>> {
        while self.limit - self.bytes < pages.len() && self.evict() {}
        let mut covered = self.watch.cover(pages.clone());
        if covered.is_none() && self.watch.is_full() && self.evict() {
            covered = self.watch.cover(pages.clone());
        }
        // Cover the pages before they are pinned, so that every later change is noticed.
        let Some(covered) = covered else { return Ok(None) };
        let registration = match make(pages, writable) {
            Ok(made) => Arc::new(made),
            Err(error) => {
                covered.release();
                return Err(error);
            }
        };
        self.bytes += pages.len();
        let kept = Arc::clone(&registration);
        let entry = Entry { end: pages.end, registration, writable, covered, used: self.clock };
        self.by_start.insert(pages.start, entry);
        Ok(Some(kept))
    }

    /// Drops the least recently used registration. Returns false if the cache is empty.
    fn evict(&mut self) -> bool {
        let oldest = self.by_start.iter().min_by_key(|(_, entry)| entry.used).map(|(&start, _)| start);
        let Some(entry) = oldest.and_then(|start| self.remove(start)) else { return false };
        entry.covered.release();
        true
    }

    fn remove(&mut self, start: usize) -> Option<Entry<R>> {
        let entry = self.by_start.remove(&start)?;
        self.bytes -= entry.end - start;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::ffi::c_void;

    use proptest::prelude::*;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::super::watch::PAGE;
    use super::*;

    /// Pages, each with a number that no other page ever held.
    struct Arena {
        base: *mut c_void,
        pages: usize,
        stamps: Cell<u64>,
    }

    /// Stands for pinned pages: their numbers at that time.
    struct Pinned {
        first: usize,
        stamps: Vec<u64>,
        writable: bool,
    }

    impl Arena {
        fn new(pages: usize) -> Self {
            // SAFETY: makes a new mapping.
            let base = unsafe { map(std::ptr::null_mut(), pages * PAGE, MapFlags::PRIVATE) };
            let arena = Arena { base, pages, stamps: Cell::new(0) };
            arena.stamp(0..pages);
            arena
        }

        fn at(&self, page: usize) -> *mut c_void {
            self.base.wrapping_byte_add(page * PAGE)
        }

        fn range(&self, pages: Range<usize>) -> Range<usize> {
            self.at(pages.start) as usize..self.at(pages.end) as usize
        }

        fn stamp(&self, pages: Range<usize>) {
            for page in pages {
                self.stamps.set(self.stamps.get() + 1);
                // SAFETY: an aligned page of the arena.
                unsafe { self.at(page).cast::<u64>().write(self.stamps.get()) };
            }
        }

        fn read(&self, page: usize) -> u64 {
            // SAFETY: as above.
            unsafe { self.at(page).cast::<u64>().read() }
        }

        fn pin(&self, range: &Range<usize>, writable: bool) -> Pinned {
            let first = (range.start - self.base as usize) / PAGE;
            Pinned { first, stamps: (0..range.len() / PAGE).map(|page| self.read(first + page)).collect(), writable }
        }

        fn replace(&self, pages: Range<usize>) {
            // SAFETY: replaces pages of the arena.
            unsafe { map(self.at(pages.start), pages.len() * PAGE, MapFlags::PRIVATE | MapFlags::FIXED) };
            self.stamp(pages);
        }

        fn discard(&self, pages: Range<usize>) {
            // SAFETY: pages of the arena.
            unsafe { madvise(self.at(pages.start), pages.len() * PAGE, Advice::LinuxDontNeed) }.unwrap();
            self.stamp(pages);
        }

        /// Returns whether the pinned pages are still mapped there.
        fn agrees(&self, pinned: &Pinned, pages: Range<usize>) -> bool {
            pages.into_iter().all(|page| pinned.stamps.get(page - pinned.first) == Some(&self.read(page)))
        }
    }

    impl Drop for Arena {
        fn drop(&mut self) {
            // SAFETY: a mapping of this test.
            unsafe { munmap(self.base, self.pages * PAGE) }.unwrap();
        }
    }

    /// # Safety
    /// As for mmap(2).
    unsafe fn map(at: *mut c_void, len: usize, flags: MapFlags) -> *mut c_void {
        // SAFETY: the caller's promise.
        unsafe { mmap_anonymous(at, len, ProtFlags::READ | ProtFlags::WRITE, flags) }.unwrap()
    }

    fn cache(pages: usize) -> Option<Cache<Pinned>> {
        let watch = Watch::start().inspect_err(|error| println!("skipped: no userfaultfd: {error}")).ok()?;
        Some(Cache::new(watch, pages * PAGE))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Get { pages: Range<usize>, writable: bool },
        Replace(Range<usize>),
        Discard(Range<usize>),
        Clear,
    }

    fn some_pages() -> impl Strategy<Value = Range<usize>> {
        (0_usize..40, 1_usize..12).prop_map(|(first, count)| first..first + count)
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (some_pages(), any::<bool>()).prop_map(|(pages, writable)| Step::Get { pages, writable }),
            2 => some_pages().prop_map(Step::Replace),
            2 => some_pages().prop_map(Step::Discard),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn registrations_cover_the_present_pages(steps in prop::collection::vec(step(), 1..60)) {
            let arena = Arena::new(64);
            let Some(mut cache) = cache(32) else { return Ok(()) };
            for step in steps {
                match step {
                    Step::Get { pages, writable } => {
                        let make = |range: &Range<usize>, writable| Ok(arena.pin(range, writable));
                        let pinned = cache.get(&arena.range(pages.clone()), writable, make).unwrap();
                        prop_assert!(arena.agrees(&pinned, pages));
                        prop_assert!(pinned.writable || !writable);
                        prop_assert!(cache.bytes <= cache.limit);
                    }
                    Step::Replace(pages) => arena.replace(pages),
                    Step::Discard(pages) => arena.discard(pages),
                    Step::Clear => _ = cache.clear(),
                }
            }
        }
    }

    #[test]
    fn cached_registrations_are_found_again() {
        let arena = Arena::new(64);
        let Some(mut cache) = cache(32) else { return };
        let made = RefCell::new(Vec::new());
        let make = |range: &Range<usize>, writable| {
            made.borrow_mut().push(range.len() / PAGE);
            Ok(arena.pin(range, writable))
        };
        let mut get = |pages: Range<usize>, writable| drop(cache.get(&arena.range(pages), writable, make).unwrap());
        for _ in 0..3 {
            get(0..8, false);
            get(2..5, false);
        }
        assert_eq!(*made.borrow(), [8]);
        get(2..5, true);
        assert_eq!(*made.borrow(), [8, 8], "the whole range is now registered for writing");
        for _ in 0..3 {
            get(6..12, false);
            get(0..8, true);
        }
        assert_eq!(*made.borrow(), [8, 8, 12], "overlapping ranges merge");
        get(20..44, false);
        get(0..12, false);
        assert_eq!(*made.borrow(), [8, 8, 12, 24, 12], "the cache stays within its limit");
        get(0..40, false);
        get(0..40, false);
        get(0..12, false);
        assert_eq!(*made.borrow(), [8, 8, 12, 24, 12, 40, 40], "a range beyond the limit is not cached");
    }

    /// Another page in the range may be discarded between the check and the pinning.
    #[test]
    fn pages_reported_meanwhile_are_not_cached() {
        let arena = Arena::new(16);
        let Some(mut cache) = cache(16) else { return };
        let made = RefCell::new(Vec::new());
        let make = |range: &Range<usize>, writable| {
            made.borrow_mut().push(range.len() / PAGE);
            if range.len() > 8 * PAGE {
                arena.discard(0..1);
            }
            Ok(arena.pin(range, writable))
        };
        drop(cache.get(&arena.range(0..8), false, make).unwrap());
        let second = cache.get(&arena.range(4..12), false, make).unwrap();
        assert_eq!(*made.borrow(), [8, 12, 8]);
        assert!(arena.agrees(&second, 4..12));
        drop(cache.get(&arena.range(4..12), false, make).unwrap());
        assert_eq!(made.borrow().len(), 3, "the registration must stay cached");
    }

    #[test]
    fn failed_registrations_are_not_cached() {
        let arena = Arena::new(8);
        let Some(mut cache) = cache(8) else { return };
        let refused = |_: &Range<usize>, _| Err::<Pinned, _>(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(cache.get(&arena.range(0..4), true, refused).is_err());
        assert!(cache.by_start.is_empty() && cache.bytes == 0 && !cache.clear());
        let more = |range: &Range<usize>, writable| match range.len() / PAGE {
            0..=4 => Ok(arena.pin(range, writable)),
            _ => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        };
        for pages in [0..4, 2..6, 0..4] {
            assert!(cache.get(&arena.range(pages), false, more).is_ok(), "the requested part must be registered");
        }
    }

    #[test]
    fn memory_that_cannot_be_watched_is_registered_each_time() {
        let len = 4 * PAGE;
        // SAFETY: makes a new mapping.
        let shared = unsafe { map(std::ptr::null_mut(), len, MapFlags::SHARED) };
        let Some(mut cache) = cache(8) else { return };
        let count = Cell::new(0);
        for _ in 0..3 {
            let made = cache.get(&(shared as usize..shared as usize + len), true, |_, writable| {
                count.set(count.get() + 1);
                Ok(Pinned { first: 0, stamps: Vec::new(), writable })
            });
            assert!(made.is_ok());
        }
        assert_eq!(count.get(), 3);
        // SAFETY: a mapping of this test.
        unsafe { munmap(shared, len) }.unwrap();
    }
}
