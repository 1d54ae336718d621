//! Small copies by the CPU, with loads and stores to mapped device memory.
//!
//! **Never met on hardware.** No machine of the project has a driver that maps dma-bufs, nor gdrcopy's kernel module. So it
//! is off unless `device_mapped_read_limit` or `device_mapped_write_limit` is set, and each mapper has to pass a self-test
//! ([`mod@self_test`]) in each context before it maps memory of a program.
//!
//! A copy engine takes 5 to 7 us for a few bytes; most of that is driver time. Through a mapping a store takes only the
//! time to leave the processor, and a load takes one round trip over PCIe.
//!
//! # Correctness
//! - Streams do not order the CPU's accesses. So a CPU copy runs only while no other copy of Cableway is under way in
//!   the context, and after the default stream was idle at some time since the operation began.
//! - A mapping belongs to an allocation, not to an address. Each copy asks the driver for the allocation's id, which
//!   the driver never reuses.
//! - When a copy to the device completes, its bytes are visible to every device and processor ([`words::store`]).
//!
//! A mapped dma-buf keeps the memory allocated after the program has freed it. So Cableway maps only a few small
//! allocations, and each copy by another mechanism checks whether one of them was freed.
//! copy that is made otherwise looks whether one of them is gone.

mod cache;
mod dmabuf;
mod self_test;
mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use self::cache::{Cache, Entry};
use self::dmabuf::DmaBuf;
use self::self_test::{Outcome, self_test};
use crate::context::Context;
use crate::copy::{Direction, RowCopy};
use crate::driver::{Driver, Failure, Mapper, Refusal, View};
use crate::location::DeviceIndex;
use crate::order::DefaultStream;
use crate::settings::Settings;

/// The CPU mappings of a context.
pub(crate) struct CpuMapping {
    context: Arc<Context>,
    default_stream: Arc<DefaultStream>,
    /// Largest copies to the host, and to the device.
    read_limit: usize,
    write_limit: usize,
    /// True if nothing can be mapped here.
    off: AtomicBool,
    /// The number of mapped allocations.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The mappers that have not refused, the best first. `None` before the first search.
    mappers: Option<Vec<Box<dyn Mapper>>>,
    /// True if the first mapper has passed the self-test.
    tested: bool,
    cache: Cache<Box<dyn View>>,
    /// The number of consecutive allocations that the first mapper has refused.
    refused: usize,
}

/// After this many consecutive refusals Cableway stops mapping.
const PATIENCE: usize = 8;

impl CpuMapping {
    pub(crate) fn new(context: Arc<Context>, default_stream: Arc<DefaultStream>, settings: Settings) -> CpuMapping {
        CpuMapping {
            context,
            default_stream,
            read_limit: settings.mapped_read,
            write_limit: settings.mapped_write,
            off: AtomicBool::new(settings.mapped_read.max(settings.mapped_write) == 0),
            count: AtomicUsize::new(0),
            state: Mutex::default(),
        }
    }

    /// Checks whether a copy of this many bytes is possible.
    pub(crate) fn may_copy(&self, direction: Direction, len: usize) -> bool {
        let limit = match direction {
            Direction::DeviceToHost => self.read_limit,
            Direction::HostToDevice => self.write_limit,
            Direction::DeviceToDevice | Direction::WithinDevice => 0,
        };
        len <= limit && !self.off.load(Ordering::Relaxed)
    }

    /// Makes a copy to or from the context's own memory if it is mapped and `ready` returns that the CPU may access it.
    /// The second use of an allocation maps it, which takes as long as many small copies.
    ///
    /// # Safety
    /// The piece is one row, between host memory and an allocation of the context. Only the caller accesses the
    /// destination or writes the source once `ready` has returned true.
    pub(crate) unsafe fn copy(
        &self,
        piece: &RowCopy,
        direction: Direction,
        ready: impl FnOnce() -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let to_device = direction == Direction::HostToDevice;
        let device = if to_device { piece.dst as u64 } else { piece.src as u64 };
        // Locked until the copy is made, since a mapping in use must not be released.
        let mut state = self.state.lock();
        if self.mappers(&mut state)?.is_empty() {
            self.off.store(true, Ordering::Relaxed);
            return Ok(false);
        }
        let Some(id) = self.context.driver.buffer_id(device) else { return Ok(false) };
        let mut ready = Some(ready);
        let entry = if state.cache.holds(id) {
            state.cache.find(id)
        } else {
            // Do not map memory while a kernel may wait for this message: mapping may wait for the device.
            let may = !state.cache.has_refused(id) && ready.take().map_or(Ok(true), |ready| ready())?;
            if may { self.meet(&mut state, id, device)? } else { None }
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

    /// Checks whether the next mapped allocation still exists. Every copy by another mechanism calls this.
    #[inline]
    pub(crate) fn look_after(&self) {
        if self.count.load(Ordering::Relaxed) != 0
            && let Some(mut state) = self.state.try_lock()
        {
            state.cache.check_next(|id, base| self.is_there(id, base));
            self.count.store(state.cache.len(), Ordering::Relaxed);
        }
    }

    fn is_there(&self, id: u64, base: u64) -> bool {
        self.context.driver.buffer_id(base) == Some(id)
    }

    /// Returns the remaining mappers. The first call searches for them.
    fn mappers<'s>(&self, state: &'s mut State) -> Result<&'s [Box<dyn Mapper>], Failure> {
        if state.mappers.is_none() {
            let _scope = self.context.enter()?;
            let found = self.context.driver.current_device().map(|device| find(self.context.driver, device));
            let mappers = match found {
                Ok(Ok(mappers)) => mappers,
                Ok(Err(reason)) => {
                    log::debug!("context {}: device memory is not mapped: {reason}", self.context.id);
                    Vec::new()
                }
                Err(_) => Vec::new(),
            };
            state.mappers = Some(mappers);
        }
        Ok(state.mappers.as_deref().unwrap_or_default())
    }

    /// Returns the mapping of the allocation around an address. The second use of the allocation creates it, if that is
    /// possible.
    #[cold]
    fn meet<'s>(
        &self,
        state: &'s mut State,
        id: u64,
        address: u64,
    ) -> Result<Option<&'s Entry<Box<dyn View>>>, Failure> {
        if state.cache.has_refused(id) {
            return Ok(None);
        }
        state.cache.retain(|id, base| self.is_there(id, base));
        if !state.cache.meet(id) {
            return Ok(None);
        }
        let _scope = self.context.enter()?;
        if let Ok((base, len)) = self.context.driver.range(address)
            && len <= cache::LARGEST
        {
            match self.map(state, base, len) {
                Ok(Some(view)) => return Ok(Some(state.cache.add(Entry { id, base, len, view }))),
                Ok(None) => {}
                // Try again later: this memory was not refused.
                Err(NotNow) => return Ok(None),
            }
        }
        state.cache.refuse(id);
        Ok(None)
    }

    /// Maps an allocation by the first mapper that passes the self-test and accepts it. The context is current.
    fn map(&self, state: &mut State, base: u64, len: usize) -> Result<Option<Box<dyn View>>, NotNow> {
        let id = self.context.id;
        let Some(mappers) = state.mappers.as_mut() else { return Ok(None) };
        while let Some(mapper) = mappers.first() {
            if !state.tested {
                match self_test(&self.context, &self.default_stream, &**mapper) {
                    Outcome::Passed => state.tested = true,
                    Outcome::NotNow => return Err(NotNow),
                    Outcome::Failed(reason) => {
                        cableway_base::warn_once(&format!("device/mapping/{}", mapper.name()), || {
                            format!("device memory is not mapped by {}: its self-test failed: {reason}", mapper.name())
                        });
                        mappers.remove(0);
                        continue;
                    }
                    Outcome::Refused(reason) => {
                        log::info!("device memory is not mapped by {}: {reason}", mapper.name());
                        mappers.remove(0);
                        continue;
                    }
                }
            }
            let reason = match mapper.map(base, len) {
                Ok(view) => {
                    log::debug!("context {id}: {len} bytes at {base:#x} are mapped by {}", mapper.name());
                    state.refused = 0;
                    return Ok(Some(view));
                }
                Err(Refusal::Allocation(reason)) => {
                    state.refused += 1;
                    log::debug!("context {id}: {len} bytes at {base:#x} are not mapped: {reason}");
                    if state.refused < PATIENCE {
                        return Ok(None);
                    }
                    reason
                }
                Err(Refusal::All(reason)) => reason,
            };
            log::info!("device memory is not mapped by {}: {reason}", mapper.name());
            mappers.remove(0);
            (state.refused, state.tested) = (0, false);
        }
        Ok(None)
    }
}

/// The device is busy with the program's work.
struct NotNow;

/// Returns the mapped address of `len` bytes at a device address.
fn place(entry: &Entry<Box<dyn View>>, device: u64, len: usize) -> Option<*mut u8> {
    let offset = device.checked_sub(entry.base)?;
    let fits = offset.checked_add(len as u64).is_some_and(|end| end <= entry.len as u64);
    fits.then(|| entry.view.address().wrapping_add(offset as usize))
}

/// Returns the mappers that may work for a device, the best first, or the reason why there are none.
fn find(driver: &'static dyn Driver, device: DeviceIndex) -> Result<Vec<Box<dyn Mapper>>, String> {
    let dma_buf = DmaBuf::find(driver, device).map(|mapper| Box::new(mapper) as Box<dyn Mapper>);
    let mut mappers = Vec::new();
    let mut reasons = Vec::new();
    for found in [dma_buf, driver.module_mapper()] {
        match found {
            Ok(mapper) => mappers.push(mapper),
            Err(reason) => reasons.push(reason),
        }
    }
    if mappers.is_empty() { Err(reasons.join("; ")) } else { Ok(mappers) }
}

/// Describes for users how a device's memory is mapped, or why it is not.
pub(crate) fn describe(driver: &'static dyn Driver, device: DeviceIndex) -> Result<String, String> {
    let dma_buf = match DmaBuf::find(driver, device) {
        // A refusal becomes known only when memory is mapped.
        Ok(mapper) => return Ok(format!("{}, if the driver lets it be mapped", mapper.name())),
        Err(reason) => reason,
    };
    match driver.module_mapper() {
        Ok(mapper) => Ok(mapper.name().to_owned()),
        Err(reason) => Err(format!("{dma_buf}; {reason}")),
    }
}
