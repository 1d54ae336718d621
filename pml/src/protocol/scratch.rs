//! Device memory in which the pieces of a message lie between the kernel of the sender that packs them and that of the
//! receiver, which unpacks them.
//!
//! Each context of which such messages are received has one area of a fixed size, divided into slots. A message that finds
//! none goes another way: nobody waits for one.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use cableway_btl::Region;
use cableway_common_cuda::{DeviceIndex, Devices, Location, Order, Scratch};
use parking_lot::Mutex;

/// Slots of an area.
const SLOTS: usize = 8;
/// Slots are multiples of it.
const UNIT: usize = 4096;

/// The areas of one engine.
pub(crate) struct Scratches {
    /// Bytes of a slot; 0: there are to be none.
    slot: usize,
    areas: Mutex<Vec<(Context, Found)>>,
}

/// A context, as far as a location tells it.
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
    /// A bit for each slot that is free.
    free: AtomicU32,
}

impl Scratches {
    /// Of areas of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Scratches { slot: size / SLOTS / UNIT * UNIT, areas: Mutex::default() }
    }

    /// Bytes of a slot.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Whether there may be an area for messages to device memory at `at`, once the default stream is idle.
    pub(crate) fn promises(&self, at: &Location) -> bool {
        let refused = |(of, found): &(Context, Found)| *of == context(at) && matches!(found, Found::Refused);
        // Memory of pools is in no context of its own: what is unpacked there might be so in another than the area's.
        self.slot != 0 && at.context != 0 && !self.areas.lock().iter().any(refused)
    }

    /// A slot for device memory at `at`; none if all are taken. The first one has their area allocated, which is not done
    /// while the default stream has work to do.
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
        // Slots that are in use keep theirs until they are not.
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
                log::info!("messages between irregular layouts of device memory go through the host: {error}");
                areas.push((context, Found::Refused));
                None
            }
        }
    }
}

/// A part of an area, which goes back when dropped.
pub(crate) struct Slot {
    area: Arc<Area>,
    index: usize,
    len: usize,
    /// The peer may be storing in it. If nobody is left who says that it does not any more, it is never used again.
    exposed: bool,
}

impl Slot {
    /// Its memory, as a link is told of it.
    pub(crate) fn region(&self) -> Region {
        let address = self.area.memory.address().wrapping_add(self.index * self.len);
        Region { address, len: self.len, location: *self.area.memory.location(), order: Order::None }
    }

    /// The peer is about to be told that it may store in it; or it has said that it is done.
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
