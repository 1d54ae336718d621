//! Scratch memory on a device. The sender's kernel packs pieces of a message into it, and the receiver's kernel unpacks
//! them.
//!
//! Each context that receives such messages has one area of a fixed size, divided into slots. Without a free slot a
//! message takes another protocol; it never waits.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use cableway_btl::Region;
use cableway_common_cuda::{DeviceIndex, Devices, Location, Order, Scratch};
use parking_lot::Mutex;

/// Slots of an area.
const SLOTS: usize = 8;
/// Alignment of slot sizes.
const UNIT: usize = 4096;

/// The areas of one engine.
pub(crate) struct Scratches {
    /// Bytes of a slot; 0 disables scratch memory.
    slot: usize,
    areas: Mutex<Vec<(Context, Found)>>,
}

/// A context, as far as a location identifies it.
type Context = (u64, Option<DeviceIndex>);

fn context(at: &Location) -> Context {
    (at.context, at.device)
}

enum Found {
    Area(Arc<Area>),
    /// The driver has no memory for it.
    Refused,
}

struct Area {
    memory: Scratch,
    /// A bit for each free slot.
    free: AtomicU32,
}

impl Scratches {
    /// Creates the table. Areas have `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Scratches { slot: size / SLOTS / UNIT * UNIT, areas: Mutex::default() }
    }

    /// Returns the bytes of a slot.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Returns whether device memory at `at` may have an area, once the default stream is idle.
    pub(crate) fn promises(&self, at: &Location) -> bool {
        let refused = |(of, found): &(Context, Found)| *of == context(at) && matches!(found, Found::Refused);
        // Pool memory belongs to no context, so its kernels might run in another context than the area's.
        self.slot != 0 && at.context != 0 && !self.areas.lock().iter().any(refused)
    }

    /// Returns a slot for device memory at `at`, or `None` if all are taken. The first call allocates the area, but not
    /// while the default stream has work.
    pub(crate) fn take(&self, devices: &Devices, at: &Location) -> Option<Slot> {
        let area = self.area(devices, at)?;
        let taken = area.free.fetch_update(AcqRel, Acquire, |free| (free != 0).then(|| free & (free - 1)));
        let index = taken.ok()?.trailing_zeros() as usize;
        Some(Slot { area, index, len: self.slot, exposed: false })
    }

    fn area(&self, devices: &Devices, at: &Location) -> Option<Arc<Area>> {
        if self.slot == 0 || at.context == 0 {
            return None;
        }
        let context = context(at);
        let mut areas = self.areas.lock();
        // Slots in use keep their old area until they are free.
        areas.retain(|(of, found)| *of != context || !matches!(found, Found::Area(area) if !area.memory.lives()));
        match areas.iter().find(|(of, _)| *of == context) {
            Some((_, Found::Area(area))) => return Some(area.clone()),
            Some((_, Found::Refused)) => return None,
            None => {}
        }
        match devices.scratch(at, self.slot * SLOTS) {
            Ok(Some(memory)) => {
                let area = Arc::new(Area { memory, free: AtomicU32::new((1 << SLOTS) - 1) });
                areas.push((context, Found::Area(area.clone())));
                Some(area)
            }
            // The next message tries again.
            Ok(None) => None,
            Err(error) => {
                log::info!("messages between irregular device layouts go through the host: no scratch memory: {error}");
                areas.push((context, Found::Refused));
                None
            }
        }
    }
}

/// A part of an area. It returns to the area on drop.
pub(crate) struct Slot {
    area: Arc<Area>,
    index: usize,
    len: usize,
    /// Whether the peer may be storing to it. If the peer can no longer report the end of that, the slot is never
    /// reused.
    exposed: bool,
}

impl Slot {
    /// Returns its memory as a link's region.
    pub(crate) fn region(&self) -> Region {
        let address = self.area.memory.address().wrapping_add(self.index * self.len);
        Region { address, len: self.len, location: *self.area.memory.location(), order: Order::None }
    }

    /// Notes that the peer may store to it from now on, or that the peer is done.
    pub(crate) fn expose(&mut self, exposed: bool) {
        self.exposed = exposed;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.exposed {
            self.area.free.fetch_or(1 << self.index, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_devices_or_size_there_is_none() {
        for size in [0, 32 << 20] {
            let scratches = Scratches::new(size);
            assert!(scratches.take(&Devices::none(), &Location::HOST).is_none());
        }
        assert_eq!(Scratches::new(32 << 20).slot(), 4 << 20);
        assert_eq!(Scratches::new(100_000).slot(), 12_288);
    }
}
