//! Packing and unpacking by a device's driver, where the CPU may not touch the buffer.

mod gather;
mod kernel;
mod plan;
mod segments;

use std::ops::Range;

use cableway_common_cuda::{Completion, CopyBatch, DeviceError, Devices, Direction, Location, Order};

use self::kernel::ByKernel;
use self::plan::{Copy, Plan};
use self::segments::Segments;
use super::host;
use super::message::Message;
use crate::error::Error;

/// What a convertor needs besides when its buffer, or a part of it, lives on a device.
pub(super) struct DeviceSide {
    devices: Devices,
    place: Place,
    /// Whether a batch of this convertor has waited for the default stream.
    ordered: bool,
    kernel: ByKernel,
    /// For [`gather`]; kept for the next fragment.
    scratch: Vec<u8>,
}

enum Place {
    /// All in one allocation.
    One(Location),
    /// In several, perhaps some of them host memory.
    Several(Segments),
}

impl DeviceSide {
    /// None for host memory.
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
            kernel: ByKernel::default(),
            scratch: Vec::new(),
        })
    }

    /// Whether the message lies in several allocations.
    pub(super) fn is_mixed(&self) -> bool {
        matches!(self.place, Place::Several(_))
    }

    /// What a batch must wait for whose caller does not say.
    pub(super) fn order(&self) -> Order {
        if self.ordered { Order::None } else { Order::AfterDefaultStream }
    }

    /// Moves the packed bytes `range` between the message and `packed`.
    ///
    /// # Safety
    /// The range lies within the message, whose bytes and those at `packed` are valid, the destination exclusively,
    /// until the completion is done.
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
                    None => unsafe { copier.transfer::<PACK>(range, order, &mut self.scratch) }?,
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
                    // Which device comes first in which fragment nobody knows, so that all wait.
                    let order = Order::AfterDefaultStream;
                    // SAFETY: the caller's promise.
                    completion = unsafe { copier.transfer::<PACK>(part, order, &mut self.scratch) }?;
                }
            }
        }
        self.ordered = true;
        Ok(completion)
    }
}

/// Copies between one allocation on a device and packed bytes in host memory.
struct Copier<'a> {
    devices: &'a Devices,
    location: &'a Location,
    message: &'a Message<'a>,
    packed: *mut u8,
}

impl<'a> Copier<'a> {
    /// # Safety
    /// As [`DeviceSide::transfer`], for memory at `location`.
    unsafe fn transfer<const PACK: bool>(
        &self,
        range: Range<u64>,
        order: Order,
        scratch: &mut Vec<u8>,
    ) -> Result<Completion, DeviceError> {
        let plan = Plan::new(self.message, range);
        if PACK {
            // SAFETY: the caller's promise; what lies between blocks of one allocation is of that allocation.
            return unsafe { gather::pack(self, &plan.copies, order, scratch) };
        }
        // What lies between the blocks is not ours to write: each has its own copy.
        let mut batch = self.begin(Direction::HostToDevice, order)?;
        for copy in &plan.copies {
            let user = (self.message.at(copy.offset), copy.pitch as usize);
            // SAFETY: the caller's promise, for every row of the copy.
            unsafe {
                let packed = (self.packed.add(copy.packed as usize).cast_const(), copy.packed_pitch as usize);
                batch.copy_2d(user, packed, copy.width as usize, copy.rows as usize)?;
            }
        }
        batch.finish()
    }

    /// Begins copies from the device.
    fn batch(&self, order: Order) -> Result<CopyBatch<'a>, DeviceError> {
        self.begin(Direction::DeviceToHost, order)
    }

    fn begin(&self, direction: Direction, order: Order) -> Result<CopyBatch<'a>, DeviceError> {
        self.devices.batch(self.location, direction, order)
    }

    /// Adds a copy from the device.
    ///
    /// # Safety
    /// The copy's bytes on both sides are valid, the packed ones exclusively, until the batch's completion is done.
    unsafe fn add(&self, batch: &mut CopyBatch<'_>, copy: &Copy) -> Result<(), DeviceError> {
        let user = (self.message.at(copy.offset).cast_const(), copy.pitch as usize);
        // SAFETY: the caller's promise, for every row.
        unsafe {
            let packed = (self.packed.add(copy.packed as usize), copy.packed_pitch as usize);
            batch.copy_2d(packed, user, copy.width as usize, copy.rows as usize)
        }
    }
}
