//! Device memory that the CPU reaches, and small copies by its loads and stores.
//!
//! A copy engine takes 5 to 7 us for a few bytes, nearly all of which the driver spends. Through a mapping a store takes
//! as long as it takes to leave the processor, a load one way there and back over PCIe. The memory is mapped in one of
//! two [`ways`](way): a dma-buf that can be mapped, or gdrcopy's device. Where neither is there, that is found out at the
//! first small copy of a context, and costs a load of a flag from then on.
//!
//! # What makes it right
//! - No stream orders what the CPU does. So nothing of ours is under way in the context, and the default stream is idle,
//!   or is known to have been since the operation began ([`Operation`](super::copy::Operation)).
//! - A mapping belongs to an allocation, not to an address: the driver's id of it is asked for anew each time, and is never
//!   used for another.
//! - When a copy to the device is over, everybody sees it ([`words::store`]).
//!
//! A mapped dma-buf keeps the memory, freed or not. So allocations are mapped that are not large, few of them, and each
//! copy that is made otherwise looks whether one of them is gone.

mod cache;
mod dmabuf;
mod gdrcopy;
mod way;
mod words;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use self::cache::{Cache, Entry};
pub(super) use self::way::describe;
use self::way::{Refusal, View, Way};
use super::context::Context;
use super::driver::Driver;
use super::ipc::buffer_id;
use super::pieces::Piece;
use super::status::Failure;
use crate::copy::Direction;

/// What a context keeps mapped.
#[derive(Default)]
pub(super) struct Mapped {
    /// Nothing can be mapped here.
    off: AtomicBool,
    /// How many allocations are.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The ways that have not refused, the best first; none before they were looked for.
    ways: Option<Vec<Box<dyn Way>>>,
    cache: Cache<Box<dyn View>>,
    /// Allocations in a row that the first of the ways has refused.
    refused: usize,
}

/// So many allocations that are refused one after the other say that all will be.
const PATIENCE: usize = 8;

impl Mapped {
    /// Whether a copy of so many bytes could be made.
    pub(super) fn may(&self, context: &Context, direction: Direction, len: usize) -> bool {
        let limit = match direction {
            Direction::DeviceToHost => context.settings.mapped_read,
            Direction::HostToDevice => context.settings.mapped_write,
            Direction::DeviceToDevice => 0,
        };
        len <= limit && !self.off.load(Ordering::Relaxed)
    }

    /// Makes a copy to or from the context's own memory if that is mapped, and `ready` says that the CPU may touch it. At
    /// the second meeting of an allocation it is mapped: that takes as long as many small copies.
    ///
    /// # Safety
    /// The piece is one row, between host memory and an allocation of the context; nobody but the caller touches the
    /// destination or writes the source, once `ready` has said yes.
    pub(super) unsafe fn copy(
        &self,
        context: &Context,
        piece: &Piece,
        direction: Direction,
        ready: impl FnOnce() -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let to_device = direction == Direction::HostToDevice;
        let device = if to_device { piece.dst.cast_const() } else { piece.src };
        // Held until the copy is made: a mapping that is in use is not let go of.
        let mut state = self.state.lock();
        if state.ways(context)?.is_empty() {
            self.off.store(true, Ordering::Relaxed);
            return Ok(false);
        }
        let Some(id) = buffer_id(context.driver, device) else { return Ok(false) };
        let mut ready = Some(ready);
        let entry = if state.cache.holds(id) {
            state.cache.find(id)
        } else {
            // Nor is memory mapped while a kernel may wait for this very message: that may wait for the device.
            let may = !state.cache.has_refused(id) && ready.take().map_or(Ok(true), |ready| ready())?;
            if may { state.meet(context, id, device)? } else { None }
        };
        let place = entry.and_then(|entry| place(entry, device, piece.width));
        self.count.store(state.cache.len(), Ordering::Relaxed);
        let Some(place) = place else { return Ok(false) };
        if !ready.map_or(Ok(true), |ready| ready())? {
            return Ok(false);
        }
        // SAFETY: `place` is where the device's side is mapped, of an allocation that has this id at the moment; it stays
        // so while the lock is held. The rest is the caller's promise.
        unsafe {
            match to_device {
                true => words::store(place, piece.src, piece.width),
                false => words::load(piece.dst, place, piece.width),
            }
        }
        Ok(true)
    }

    /// Looks whether the allocation is still there whose turn it is. Called with every copy that is made otherwise.
    pub(super) fn look_after(&self, context: &Context) {
        if self.count.load(Ordering::Relaxed) != 0
            && let Some(mut state) = self.state.try_lock()
        {
            state.cache.check_next(|id, base| is_there(context.driver, id, base));
            self.count.store(state.cache.len(), Ordering::Relaxed);
        }
    }
}

/// Where `len` bytes at an address of the device's are mapped.
fn place(entry: &Entry<Box<dyn View>>, device: *const u8, len: usize) -> Option<*mut u8> {
    let offset = (device as u64).checked_sub(entry.base)?;
    let fits = offset.checked_add(len as u64).is_some_and(|end| end <= entry.len as u64);
    fits.then(|| entry.view.address().wrapping_add(offset as usize))
}

fn is_there(driver: &Driver, id: u64, base: u64) -> bool {
    buffer_id(driver, std::ptr::with_exposed_provenance(base as usize)) == Some(id)
}

impl State {
    /// The ways that are left. They are looked for when this is first asked.
    fn ways(&mut self, context: &Context) -> Result<&[Box<dyn Way>], Failure> {
        if self.ways.is_none() {
            let _scope = context.enter()?;
            self.ways = Some(way::find(context));
        }
        Ok(self.ways.as_deref().unwrap_or_default())
    }

    /// An allocation that is not mapped, around an address: if this is the second meeting, and it can be, it is from now on.
    #[cold]
    fn meet(
        &mut self,
        context: &Context,
        id: u64,
        address: *const u8,
    ) -> Result<Option<&Entry<Box<dyn View>>>, Failure> {
        let driver = context.driver;
        if self.cache.has_refused(id) {
            return Ok(None);
        }
        self.cache.retain(|id, base| is_there(driver, id, base));
        if !self.cache.meet(id) {
            return Ok(None);
        }
        let _scope = context.enter()?;
        let (mut base, mut len) = (0, 0);
        // SAFETY: fills in the range; any address may be asked about.
        let known = unsafe { driver.cuMemGetAddressRange(&raw mut base, &raw mut len, address as u64) };
        if known.is_ok()
            && len <= cache::LARGEST
            && let Some(view) = self.map(context, base, len)
        {
            return Ok(Some(self.cache.add(Entry { id, base, len, view })));
        }
        self.cache.refuse(id);
        Ok(None)
    }

    /// The context is current.
    fn map(&mut self, context: &Context, base: u64, len: usize) -> Option<Box<dyn View>> {
        let ways = self.ways.as_mut()?;
        while let Some(way) = ways.first() {
            let reason = match way.map(context, base, len) {
                Ok(view) => {
                    log::debug!("context {}: {len} bytes at {base:#x} are mapped by {}", context.id, way.name());
                    self.refused = 0;
                    return Some(view);
                }
                Err(Refusal::Memory(reason)) => {
                    self.refused += 1;
                    log::debug!("context {}: {len} bytes at {base:#x} are not mapped: {reason}", context.id);
                    if self.refused < PATIENCE {
                        return None;
                    }
                    reason
                }
                Err(Refusal::Way(reason)) => reason,
            };
            log::info!("device memory is not mapped by {}: {reason}", way.name());
            ways.remove(0);
            self.refused = 0;
        }
        None
    }
}
