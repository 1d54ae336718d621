//! A pool of host memory of any size for copies of device buffers: page-aligned, registered, reused, and bounded.

use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::anonymous;
use super::registrations::{HostRegistration, Registrar};

/// Sizes up to this are rounded up to powers of two and kept for reuse.
const LARGEST_KEPT: usize = 16 << 20;
/// The number of bytes kept for reuse, all sizes together.
const MOST_KEPT: usize = 64 << 20;
const PAGE: usize = 4096;

/// A pool of host memory in pieces of any size. Pieces of up to 16 MiB are kept for reuse, at most 64 MiB in total.
/// Clones share one pool.
#[derive(Clone)]
pub struct HostPool {
    shared: Arc<Shared>,
}

struct Shared {
    registrar: Registrar,
    /// The number of bytes that may be mapped at a time.
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mapped: usize,
    kept: Vec<Mapping>,
}

impl State {
    fn kept_bytes(&self) -> usize {
        self.kept.iter().map(|mapping| mapping.len).sum()
    }
}

impl HostPool {
    /// Returns a pool of at most `limit` bytes, including the kept ones; 0 means half of the machine's memory.
    /// Allocates nothing yet.
    pub(crate) fn with(registrar: Registrar, limit: usize) -> HostPool {
        let limit = if limit == 0 { half_of_memory() } else { limit };
        HostPool { shared: Arc::new(Shared { registrar, limit, state: Mutex::default() }) }
    }

    /// Returns the limit in bytes, for pieces in use and kept ones.
    pub fn limit(&self) -> usize {
        self.shared.limit
    }

    /// Takes memory of at least `len` bytes, whose content is undefined but initialised. Returns `None` beyond the
    /// limit, or if the system has no memory.
    pub fn take(&self, len: usize) -> Option<HostMemory> {
        let shared = &*self.shared;
        let rounded =
            if len <= LARGEST_KEPT { len.max(PAGE).next_power_of_two() } else { len.checked_next_multiple_of(PAGE)? };
        let mut state = shared.state.lock();
        if let Some(index) = state.kept.iter().rposition(|mapping| mapping.len == rounded) {
            let mapping = state.kept.swap_remove(index);
            return Some(HostMemory { mapping: Some(mapping), shared: self.shared.clone() });
        }
        // Release kept memory of other sizes first.
        while state.mapped.saturating_add(rounded) > shared.limit {
            let mapping = state.kept.pop()?;
            state.mapped -= mapping.len;
        }
        let mapping = Mapping::new(&shared.registrar, rounded)?;
        state.mapped += rounded;
        Some(HostMemory { mapping: Some(mapping), shared: self.shared.clone() })
    }
}

impl std::fmt::Debug for HostPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("HostPool")
            .field("limit", &self.shared.limit)
            .field("mapped", &state.mapped)
            .field("kept", &state.kept_bytes())
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
        let mut state = self.shared.state.lock();
        if mapping.len <= LARGEST_KEPT && state.kept_bytes() + mapping.len <= MOST_KEPT {
            state.kept.push(mapping);
        } else {
            state.mapped -= mapping.len;
            // Unmapping takes long, so do it without the lock.
            drop(state);
            drop(mapping);
        }
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
        let held = pool.take(2 * PAGE).expect("within the limit");
        assert!(pool.take(4 * PAGE).is_none(), "past the limit");
        assert!(pool.take(usize::MAX).is_none());
        drop(held);
        assert!(pool.take(4 * PAGE).is_some(), "what was kept made room");
    }
}
