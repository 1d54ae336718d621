//! A pool of host memory of any size for copies of device buffers: page-aligned, registered, reused, and bounded.
//!
//! Mapping memory, touching its pages and registering it takes many times longer than a copy to or from it. So the pool
//! keeps what was used last.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::anonymous;
use super::registrations::{HostRegistration, Registrar};

/// The number of bytes kept for reuse, all sizes together, unless half of the limit is less.
const MOST_KEPT: usize = 512 << 20;
/// Sizes up to this are rounded up to powers of two, and larger ones by an eighth at most.
const LARGEST_POWER: usize = 16 << 20;
const PAGE: usize = 4096;

/// A pool of host memory in pieces of any size. Released pieces are kept for reuse: at most 512 MiB, or half of the
/// limit. The piece that was released first goes first. Clones share one pool.
#[derive(Clone)]
pub struct HostPool {
    shared: Arc<Shared>,
}

struct Shared {
    registrar: Registrar,
    /// The number of bytes that may be mapped at a time.
    limit: usize,
    /// The mappings made since [`HostPool::new_allocations`] was asked.
    allocations: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mapped: usize,
    /// The last one was released last.
    kept: Vec<Mapping>,
    kept_bytes: usize,
}

impl State {
    /// Takes the smallest piece that suffices and is not twice as large, of equal ones the last.
    fn reuse(&mut self, len: usize) -> Option<Mapping> {
        let suits = |mapping: &Mapping| mapping.len >= len && mapping.len / 2 < len;
        let suitable = self.kept.iter().enumerate().filter(|(_, mapping)| suits(mapping));
        let (index, _) = suitable.min_by_key(|&(index, mapping)| (mapping.len, std::cmp::Reverse(index)))?;
        let mapping = self.kept.remove(index);
        self.kept_bytes -= mapping.len;
        Some(mapping)
    }

    /// Takes the piece out of the pool that was released first.
    fn evict(&mut self) -> Option<Mapping> {
        if self.kept.is_empty() {
            return None;
        }
        let mapping = self.kept.remove(0);
        self.kept_bytes -= mapping.len;
        self.mapped -= mapping.len;
        Some(mapping)
    }
}

impl HostPool {
    /// Returns a pool of at most `limit` bytes, including the kept ones; 0 means half of the machine's memory.
    /// Allocates nothing yet.
    pub(crate) fn with(registrar: Registrar, limit: usize) -> HostPool {
        let limit = if limit == 0 { half_of_memory() } else { limit };
        let (allocations, state) = (AtomicU64::new(0), Mutex::default());
        HostPool { shared: Arc::new(Shared { registrar, limit, allocations, state }) }
    }

    /// Returns the limit in bytes, for pieces in use and kept ones.
    pub fn limit(&self) -> usize {
        self.shared.limit
    }

    /// Returns how many pieces were allocated, instead of reused, since the last call of this function.
    pub fn new_allocations(&self) -> u64 {
        self.shared.allocations.swap(0, Ordering::Relaxed)
    }

    /// Takes memory of at least `len` bytes, whose content is undefined but initialised. Returns `None` beyond the
    /// limit, or if the system has no memory.
    pub fn take(&self, len: usize) -> Option<HostMemory> {
        let shared = &*self.shared;
        let pages = len.max(PAGE).checked_next_multiple_of(PAGE)?;
        let mut evicted = Vec::new();
        let mut state = shared.state.lock();
        let mapping = match state.reuse(pages) {
            Some(mapping) => mapping,
            None => {
                let mut len = rounded(pages).unwrap_or(pages);
                while state.mapped.saturating_add(len) > shared.limit {
                    // Kept memory makes room, and then what rounding added.
                    match state.evict() {
                        Some(mapping) => evicted.push(mapping),
                        None if len > pages => len = pages,
                        None => return None,
                    }
                }
                let mapping = Mapping::new(&shared.registrar, len)?;
                shared.allocations.fetch_add(1, Ordering::Relaxed);
                state.mapped += len;
                mapping
            }
        };
        // Unmapping what was evicted takes long, so do it without the lock.
        drop(state);
        Some(HostMemory { mapping: Some(mapping), shared: self.shared.clone() })
    }
}

/// Rounds a size up, so that later sizes near it fit.
fn rounded(len: usize) -> Option<usize> {
    let power = len.checked_next_power_of_two()?;
    if power <= LARGEST_POWER { Some(power) } else { len.checked_next_multiple_of(power / 16) }
}

impl Shared {
    fn most_kept(&self) -> usize {
        MOST_KEPT.min(self.limit / 2)
    }
}

impl std::fmt::Debug for HostPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("HostPool")
            .field("limit", &self.shared.limit)
            .field("mapped", &state.mapped)
            .field("kept", &state.kept_bytes)
            .finish()
    }
}

/// Memory of a [`HostPool`]. Dropping it returns it to the pool.
pub struct HostMemory {
    /// `None` only during the drop.
    mapping: Option<Mapping>,
    shared: Arc<Shared>,
}

impl HostMemory {
    /// The first byte.
    pub fn address(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), |mapping| mapping.address.as_ptr())
    }
}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMemory").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take() else { return };
        let mut evicted = Vec::new();
        let mut state = self.shared.state.lock();
        state.kept_bytes += mapping.len;
        state.kept.push(mapping);
        while state.kept_bytes > self.shared.most_kept() {
            evicted.extend(state.evict());
        }
        // Unmapping takes long, so do it without the lock.
        drop(state);
    }
}

struct Mapping {
    /// `None` only during the drop. The registration must end before the mapping does.
    registration: Option<HostRegistration>,
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: this value owns the mapping.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(registrar: &Registrar, len: usize) -> Option<Mapping> {
        let address = anonymous::map(len, 0).ok()?;
        // SAFETY: mapped until `drop`, which ends the registration first.
        let registration = unsafe { registrar.register(address.as_ptr(), len) };
        Some(Mapping { registration: Some(registration), address, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.registration = None;
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

fn half_of_memory() -> usize {
    // SAFETY: asks for two numbers of the system.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(size).unwrap_or(0)).max(1 << 30) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_within_the_limit() {
        let pool = HostPool::with(Registrar::default(), 4 * PAGE);
        let first = pool.take(1).map(|memory| memory.address());
        assert_eq!(pool.take(PAGE).map(|memory| memory.address()), first, "kept and used again");
        assert_eq!(pool.new_allocations(), 1);
        let held = pool.take(2 * PAGE).expect("within the limit");
        assert!(pool.take(4 * PAGE).is_none(), "past the limit");
        assert!(pool.take(usize::MAX).is_none());
        drop(held);
        assert!(pool.take(4 * PAGE).is_some(), "what was kept made room");
    }
    #[test]
    fn large_memory_is_kept_and_serves_sizes_near_it() {
        let pool = HostPool::with(Registrar::default(), 1 << 30);
        for len in [33 << 20, 34 << 20, 20 << 20, 35 << 20] {
            assert!(pool.take(len).is_some());
        }
        assert_eq!(pool.new_allocations(), 1);
        assert!(pool.take(10 << 20).is_some());
        assert_eq!(pool.new_allocations(), 1, "a piece of more than twice the size is kept for larger ones");
    }

    #[test]
    fn what_was_released_first_goes_first() {
        // Half of it is kept.
        let pool = HostPool::with(Registrar::default(), 16 * PAGE);
        let take = |len: usize| pool.take(len).expect("within the limit");
        let addresses = {
            let pieces = [take(4 * PAGE), take(4 * PAGE), take(4 * PAGE)];
            let addresses = pieces.each_ref().map(HostMemory::address);
            pieces.into_iter().for_each(drop);
            addresses
        };
        assert_eq!(pool.new_allocations(), 3);
        let held = [take(4 * PAGE), take(4 * PAGE)];
        assert_eq!(held.each_ref().map(HostMemory::address), [addresses[2], addresses[1]]);
        assert_eq!(pool.new_allocations(), 0);
        let third = take(4 * PAGE);
        assert_eq!(pool.new_allocations(), 1, "the first piece was released");
        drop((held, third));
    }
}
