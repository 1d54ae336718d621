//! Memory registered for peers' `put`, by key.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cableway_base::Rank;
use cableway_btl::{Region, Registration, RemoteHandle};
use parking_lot::Mutex;
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The number of remembered keys of ended registrations. Late data for them is discarded and is no violation.
const REMEMBERED: usize = 1024;

/// The handle of a registration on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHandle {
    key: U64,
    len: U64,
}

const _: () = assert!(size_of::<WireHandle>() == 16 && size_of::<WireHandle>() <= RemoteHandle::MAX);

/// A handle as the peer reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) key: u64,
    pub(crate) len: u64,
}

impl Target {
    pub(crate) fn read(handle: &RemoteHandle) -> Option<Self> {
        let handle = WireHandle::read_from_bytes(handle.as_bytes()).ok()?;
        Some(Target { key: handle.key.get(), len: handle.len.get() })
    }
}

/// The registrations of this process.
#[derive(Default)]
pub(crate) struct Regions {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    live: HashMap<u64, Arc<Entry>>,
    ended: VecDeque<(u64, Rank)>,
}

struct Entry {
    peer: Rank,
    address: *mut u8,
    len: usize,
    /// Locked during writes to the memory; false after the end of the registration.
    open: Mutex<bool>,
}

// SAFETY: the memory is only written under `open`, and `Regions::register`'s caller answers for it until then.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// Why a peer's `put` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadPut {
    #[error("a put to memory that was not registered for it (key {key:#x})")]
    Key { key: u64 },
    #[error("a put of {len} bytes at {offset} to {registered} registered bytes")]
    Range { offset: u64, len: usize, registered: usize },
}

/// The destination of an arriving piece of a `put`.
pub(crate) enum Landing {
    Memory(Window),
    /// The registration has ended.
    Nowhere,
}

/// A checked range of registered memory.
pub(crate) struct Window {
    entry: Arc<Entry>,
    start: usize,
    len: usize,
}

impl Window {
    /// Calls `write` to fill the window from `from` on. Returns `None` if the registration has ended, and nothing may
    /// be written.
    pub(crate) fn write<R>(&self, from: usize, write: impl FnOnce(*mut u8, usize) -> R) -> Option<R> {
        let open = self.entry.open.lock();
        let from = from.min(self.len);
        // SAFETY: `land` checked that the window lies within the region, and `from` lies within the window.
        open.then(|| write(unsafe { self.entry.address.add(self.start + from) }, self.len - from))
    }
}

impl Regions {
    /// Lets `peer` write to `region` until the registration is dropped. The drop waits for a write in progress.
    ///
    /// # Safety
    /// The region stays valid while registered, and no other code accesses it.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub(crate) unsafe fn register(self: &Arc<Self>, peer: Rank, region: Region) -> std::io::Result<Registration> {
        let entry = Arc::new(Entry { peer, address: region.address, len: region.len, open: Mutex::new(true) });
        let key = loop {
            let key = u64::from_ne_bytes(crate::random()?);
            let mut table = self.table.lock();
            if let std::collections::hash_map::Entry::Vacant(vacant) = table.live.entry(key) {
                vacant.insert(Arc::clone(&entry));
                break key;
            }
        };
        let handle = WireHandle { key: U64::new(key), len: U64::new(region.len as u64) };
        let handle = RemoteHandle::new(handle.as_bytes()).ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(Registration::new(handle, Some(Box::new(Keeper { regions: Arc::clone(self), key, entry }))))
    }

    /// Checks a piece of a `put` by `peer`.
    ///
    /// # Errors
    /// The memory is not registered for this peer.
    pub(crate) fn land(&self, peer: Rank, key: u64, offset: u64, len: usize) -> Result<Landing, BadPut> {
        let table = self.table.lock();
        let Some(entry) = table.live.get(&key).filter(|entry| entry.peer == peer) else {
            return if table.ended.contains(&(key, peer)) { Ok(Landing::Nowhere) } else { Err(BadPut::Key { key }) };
        };
        usize::try_from(offset)
            .ok()
            .filter(|start| start.checked_add(len).is_some_and(|end| end <= entry.len))
            .map(|start| Landing::Memory(Window { entry: Arc::clone(entry), start, len }))
            .ok_or(BadPut::Range { offset, len, registered: entry.len })
    }
}

/// Ends a registration when dropped.
struct Keeper {
    regions: Arc<Regions>,
    key: u64,
    entry: Arc<Entry>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let mut table = self.regions.table.lock();
        table.live.remove(&self.key);
        if table.ended.len() == REMEMBERED {
            table.ended.pop_front();
        }
        table.ended.push_back((self.key, self.entry.peer));
        drop(table);
        *self.entry.open.lock() = false;
    }
}

#[cfg(test)]
mod tests {
    use cableway_common_cuda::{Location, Order};

    use super::*;

    fn register(regions: &Arc<Regions>, memory: &mut [u8]) -> (Registration, u64) {
        let region =
            Region { address: memory.as_mut_ptr(), len: memory.len(), location: Location::HOST, order: Order::None };
        // SAFETY: the tests keep the memory beyond the registration and touch it only there.
        let registration = unsafe { regions.register(3, region) }.unwrap();
        let target = Target::read(registration.handle()).unwrap();
        assert_eq!(target.len, memory.len() as u64);
        (registration, target.key)
    }

    #[test]
    fn only_the_peer_and_only_the_range() {
        let regions = Arc::new(Regions::default());
        let mut memory = vec![0; 100];
        let (registration, key) = register(&regions, &mut memory);
        assert!(matches!(regions.land(3, key, 0, 100), Ok(Landing::Memory(_))));
        assert!(matches!(regions.land(3, key, 100, 0), Ok(Landing::Memory(_))));
        for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (1, usize::MAX)] {
            let refused = regions.land(3, key, offset, len).err();
            assert_eq!(refused, Some(BadPut::Range { offset, len, registered: 100 }));
        }
        assert_eq!(regions.land(2, key, 0, 1).err(), Some(BadPut::Key { key }));
        assert!(regions.land(3, key.wrapping_add(1), 0, 1).is_err());
        drop(registration);
    }

    #[test]
    fn nothing_is_written_after_a_registration_ends() {
        let regions = Arc::new(Regions::default());
        let mut memory = vec![0; 100];
        let (registration, key) = register(&regions, &mut memory);
        let Ok(Landing::Memory(window)) = regions.land(3, key, 10, 20) else { panic!("the range is registered") };
        assert_eq!(window.write(5, |_, len| len), Some(15));
        drop(registration);
        assert_eq!(window.write(5, |_, len| len), None);
        assert!(matches!(regions.land(3, key, 0, 1), Ok(Landing::Nowhere)));
        assert!(regions.land(4, key, 0, 1).is_err());
    }
}
