//! Host memory that devices access at the speed of the link.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::anonymous;
use super::registrations::{HostRegistration, Registrar};

/// A bounded pool of host buffers of one size, page-aligned and registered with the driver once a device is in use.
///
/// Clones share one pool. It grows by a few buffers at a time. It keeps its memory until the pool and its last buffer
/// are dropped.
#[derive(Clone)]
pub struct BouncePool {
    shared: Arc<Shared>,
}

struct Shared {
    registrar: Registrar,
    chunk: usize,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<NonNull<u8>>,
    /// Kept for the mappings and registrations.
    slabs: Vec<Slab>,
    chunks: usize,
}

// SAFETY: the pointers are to chunks of `slabs`, each owned by the caller that took it out of `free`.
unsafe impl Send for State {}

impl BouncePool {
    /// Returns a pool of at most `limit` buffers of `chunk` bytes, rounded up to whole pages. Allocates nothing yet.
    pub(crate) fn with(registrar: Registrar, chunk: usize, limit: usize) -> Self {
        let chunk = chunk.max(1).next_multiple_of(page_size());
        let state = Mutex::new(State::default());
        BouncePool { shared: Arc::new(Shared { registrar, chunk, limit, state }) }
    }

    /// Returns the size of a buffer.
    pub fn chunk_size(&self) -> usize {
        self.shared.chunk
    }

    /// Takes a buffer. Returns `None` if all are in use or the system has no memory. Its content is undefined but
    /// initialised.
    pub fn take(&self) -> Option<BounceBuffer> {
        let mut state = self.shared.state.lock();
        if state.free.is_empty() {
            self.shared.grow(&mut state);
        }
        // The buffer that was used last is likely to be in a cache.
        let address = state.free.pop()?;
        Some(BounceBuffer { shared: self.shared.clone(), address })
    }
}

impl std::fmt::Debug for BouncePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("BouncePool")
            .field("chunk", &self.shared.chunk)
            .field("chunks", &state.chunks)
            .field("free", &state.free.len())
            .field("limit", &self.shared.limit)
            .finish()
    }
}

impl Shared {
    /// Doubles the number of buffers, starting with four, so that few registrations cover many.
    fn grow(&self, state: &mut State) {
        let more = state.chunks.max(4).min(self.limit.saturating_sub(state.chunks));
        let Some(len) = more.checked_mul(self.chunk).filter(|&len| len != 0) else { return };
        let Some(slab) = Slab::new(&self.registrar, len) else { return };
        for index in 0..more {
            // SAFETY: within the slab's mapping of `more` chunks.
            state.free.push(unsafe { slab.mapping.address.add(index * self.chunk) });
        }
        state.chunks += more;
        state.slabs.push(slab);
    }
}

/// One mapping and its registration. The order of the fields matters: unregister first, then unmap.
struct Slab {
    _registration: HostRegistration,
    mapping: Mapping,
}

impl Slab {
    fn new(registrar: &Registrar, len: usize) -> Option<Slab> {
        let mapping = Mapping::new(len)?;
        // SAFETY: the mapping is dropped after the registration.
        let registration = unsafe { registrar.register(mapping.address.as_ptr(), len) };
        Some(Slab { _registration: registration, mapping })
    }
}

/// Anonymous memory.
struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Option<Mapping> {
        match anonymous::map(len, 0) {
            Ok(address) => Some(Mapping { address, len }),
            Err(error) => {
                cableway_base::warn_once("cuda/bounce/mmap", || format!("{len} bytes of bounce buffers: {error}"));
                None
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// A buffer of a [`BouncePool`]. Dropping it returns it to the pool.
pub struct BounceBuffer {
    shared: Arc<Shared>,
    address: NonNull<u8>,
}

// SAFETY: the chunk belongs to this value alone.
unsafe impl Send for BounceBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for BounceBuffer {}

impl BounceBuffer {
    /// The first byte, for a device to copy from or to.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.address.as_ptr()
    }
}

impl Deref for BounceBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `chunk` initialised bytes that are this value's alone.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.shared.chunk) }
    }
}

impl DerefMut for BounceBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.shared.chunk) }
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        self.shared.state.lock().free.push(self.address);
    }
}

impl std::fmt::Debug for BounceBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BounceBuffer").field("address", &self.address).field("len", &self.shared.chunk).finish()
    }
}

pub(crate) fn page_size() -> usize {
    // SAFETY: asks for a constant of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
