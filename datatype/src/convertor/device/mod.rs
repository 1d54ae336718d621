//! Packing and unpacking by a device's driver, if the CPU must not access the buffer.

mod copier;
mod gather;
mod kernel;
mod plan;
mod segments;

use std::ops::Range;

use cableway_common_cuda::{Completion, DeviceError, Devices, Direction, Location, Order};

use self::copier::Copier;
use self::kernel::ByKernel;
use self::plan::Plan;
use self::segments::Segments;
use super::host;
use super::message::Message;
use crate::error::Error;

/// The part of a convertor for a buffer with bytes on a device.
pub(super) struct DeviceSide {
    devices: Devices,
    place: Place,
    /// True if no batch of this convertor need wait for the default stream any more.
    ordered: bool,
    /// True if no batch ever waits for it.
    free: bool,
    kernel: ByKernel,
    /// The scratch memory of [`gather`], kept for the next fragment.
    scratch: Vec<u8>,
}

enum Place {
    /// The message is in one allocation.
    One(Location),
    /// The message is in several allocations, some of them perhaps host memory.
    Several(Segments),
}

impl DeviceSide {
    /// Returns `None` for host memory.
    #[inline]
    pub(super) fn new(location: &Location, devices: &Devices) -> Option<Box<DeviceSide>> {
        location.on_device().then(|| Self::boxed(Place::One(*location), devices))
    }

    /// Classifies every block. The location is that of the first block on a device, or host memory without one.
    pub(super) fn by_block(message: &Message<'_>, size: u64, devices: &Devices) -> (Location, Option<Box<DeviceSide>>) {
        let segments = Segments::new(message, size, devices);
        let Some(location) = segments.first_on_device() else { return (Location::HOST, None) };
        let place = if segments.is_one() { Place::One(location) } else { Place::Several(segments) };
        (location, Some(Self::boxed(place, devices)))
    }

    fn boxed(place: Place, devices: &Devices) -> Box<DeviceSide> {
        Box::new(DeviceSide {
            devices: devices.clone(),
            place,
            ordered: false,
            free: false,
            kernel: ByKernel::default(),
            scratch: Vec::new(),
        })
    }

    /// Checks whether the message lies in several allocations.
    pub(super) fn is_mixed(&self) -> bool {
        matches!(self.place, Place::Several(_))
    }

    /// Makes no batch wait for the default stream.
    pub(super) fn follow_nothing(&mut self) {
        (self.ordered, self.free) = (true, true);
    }

    /// Returns the order of a batch whose caller names none.
    pub(super) fn order(&self) -> Order {
        match &self.place {
            _ if self.ordered => Order::None,
            Place::One(location) => self.devices.order(location),
            Place::Several(_) => Order::AfterDefaultStream,
        }
    }

    /// Moves the packed bytes `range` between the message and `packed`.
    ///
    /// # Safety
    /// The range lies within the message. The message's bytes and those at `packed` are valid, the destination
    /// exclusively, until the completion is done.
    pub(super) unsafe fn transfer<const PACK: bool>(
        &mut self,
        message: &Message<'_>,
        range: Range<u64>,
        packed: *mut u8,
        order: Order,
    ) -> Result<Completion, Error> {
        if range.is_empty() {
            return Ok(Completion::DONE);
        }
        let mut completion = Completion::DONE;
        match &self.place {
            Place::One(location) => {
                let copier = Copier { devices: &self.devices, location, message, packed };
                // SAFETY: the caller's promise.
                let started = unsafe { self.kernel.transfer::<PACK>(&copier, &range, (order, self.ordered)) }?;
                completion = match started {
                    Some(started) => started,
                    // SAFETY: the caller's promise.
                    None => unsafe { transfer_by_engines::<PACK>(&copier, range, order, &mut self.scratch) }?,
                };
            }
            Place::Several(segments) => {
                for (location, part) in segments.within(range.clone()) {
                    // SAFETY: the part's packed bytes are as far from `packed` as from the range's start.
                    let packed = unsafe { packed.add((part.start - range.start) as usize) };
                    if !location.on_device() {
                        // SAFETY: the caller's promise, of host memory.
                        unsafe { host::move_range::<PACK>(message, part, packed) };
                        continue;
                    }
                    completion.wait()?;
                    let copier = Copier { devices: &self.devices, location, message, packed };
                    // The order in which fragments use devices is unknown, so each of them asks.
                    let order = if self.free { Order::None } else { self.devices.order(location) };
                    // SAFETY: the caller's promise.
                    completion = unsafe { transfer_by_engines::<PACK>(&copier, part, order, &mut self.scratch) }?;
                }
            }
        }
        self.ordered = true;
        Ok(completion)
    }
}

/// Moves the packed bytes `range` by copy engines.
///
/// # Safety
/// As [`DeviceSide::transfer`], for memory at the copier's location.
unsafe fn transfer_by_engines<const PACK: bool>(
    copier: &Copier<'_>,
    range: Range<u64>,
    order: Order,
    scratch: &mut Vec<u8>,
) -> Result<Completion, DeviceError> {
    let plan = Plan::new(copier.message, range);
    if PACK {
        // SAFETY: the caller's promise; the bytes between blocks of one allocation belong to that allocation.
        return unsafe { gather::pack(copier, &plan.copies, order, scratch) };
    }
    // Unpacking must not write between the blocks, so each block has its own copy.
    let mut batch = copier.batch(Direction::HostToDevice, order)?;
    for copy in &plan.copies {
        // SAFETY: the caller's promise, for every row of the copy.
        unsafe { copier.unpack(&mut batch, copy) };
    }
    batch.finish()
}
