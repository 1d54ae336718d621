//! The buffers of a rank. The CPU fills and verifies them.

use std::fmt;
use std::ops::Range;

use cableway::{DeviceBuffer, DeviceIndex, RawBuffer, SharedVec, World};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::kind::MemoryKind;
use super::pattern::{self, Mismatch};
use super::shape::Shape;
use crate::cli::Failure;

/// A page; buffers begin at a page boundary.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

enum Storage {
    Host(Vec<Page>),
    Shared(SharedVec<Page>),
    Device(DeviceBuffer),
}

/// The buffer for messages of one direction, in slots of the size of a message.
pub(crate) struct Memory {
    storage: Storage,
    shape: Shape,
    /// Host memory in which the CPU prepares and verifies messages in device memory.
    staging: Vec<u8>,
}

/// The content of receive buffers before a message arrives.
const POISON: u8 = 0xa5;

impl Memory {
    pub(crate) fn new(
        world: &World,
        kind: MemoryKind,
        device: Option<DeviceIndex>,
        shape: Shape,
        bytes: u64,
    ) -> Result<Self, Failure> {
        let len = shape.span(bytes).max(1);
        let pages = len.div_ceil(size_of::<Page>());
        let storage = match (kind.on_device(), device) {
            _ if kind == MemoryKind::Shared => {
                Storage::Shared(world.shared_vec(pages).map_err(|error| Failure::failed(1, error))?)
            }
            (Some(kind), Some(device)) => {
                let buffer = DeviceBuffer::new(world.devices(), device, kind, len);
                Storage::Device(buffer.map_err(|error| Failure::failed(1, error))?)
            }
            _ => Storage::Host(vec![Page([0; 4096]); pages]),
        };
        Ok(Memory { storage, shape, staging: Vec::new() })
    }

    /// Returns the message of `size` bytes in `slot`, to send.
    pub(crate) fn message(&self, slot: u32, size: u64) -> RawBuffer<'_> {
        // SAFETY: the memory is not written to as long as `self` is borrowed.
        unsafe { self.view(slot, size) }
    }

    /// Returns `count` messages to send at a time: one slot each, or the first slot for all if `shared`.
    pub(crate) fn messages(&self, count: u32, size: u64, shared: bool) -> Vec<RawBuffer<'_>> {
        (0..count).map(|slot| self.message(if shared { 0 } else { slot }, size)).collect()
    }

    /// Returns buffers for `count` messages at a time: one slot each, or the first slot for all if `shared`. The content of
    /// a shared slot is not verified.
    pub(crate) fn buffers(&mut self, count: u32, size: u64, shared: bool) -> Vec<RawBuffer<'_>> {
        let slot = |number| if shared { 0 } else { number };
        // SAFETY: the memory is borrowed exclusively. Slots do not overlap. Nobody reads a shared slot, and any bytes are
        // valid there.
        (0..count).map(|number| unsafe { self.view(slot(number), size) }).collect()
    }

    /// Returns the first slot `count` times, as buffers that operations of several threads fill at a time.
    ///
    /// # Safety
    /// Nobody reads the content.
    pub(crate) unsafe fn shared(&self, count: u32, size: u64) -> Vec<RawBuffer<'_>> {
        // SAFETY: the caller's promise; any bytes are valid there.
        (0..count).map(|_| unsafe { self.view(0, size) }).collect()
    }

    /// # Safety
    /// As [`RawBuffer::new`] says about access; the memory itself lives as long as `self`.
    unsafe fn view(&self, slot: u32, size: u64) -> RawBuffer<'_> {
        let address = self.address(slot, size).cast();
        // SAFETY: within the allocation, and the caller's promise.
        let buffer = unsafe {
            match &self.shape {
                Shape::Contiguous => RawBuffer::new(address, size),
                Shape::Blocks(blocks) => RawBuffer::typed(address, size / blocks.size(), blocks.layout()),
            }
        };
        match &self.storage {
            // SAFETY: within this allocation, which lives as long as `self`.
            Storage::Device(device) => unsafe { buffer.within(device.allocation()) },
            Storage::Host(_) | Storage::Shared(_) => buffer,
        }
    }

    /// Returns the address and the length of the allocation.
    pub(crate) fn whole(&self) -> (*mut u8, usize) {
        match &self.storage {
            Storage::Host(pages) => (pages.as_ptr().cast::<u8>().cast_mut(), size_of_val(&pages[..])),
            Storage::Shared(pages) => (pages.as_ptr().cast::<u8>().cast_mut(), size_of_val(&pages[..])),
            Storage::Device(buffer) => (buffer.as_device_ptr(), buffer.len()),
        }
    }

    /// Copies bytes to the beginning of memory that the CPU writes. Returns false for other memory, and for more bytes than
    /// it has.
    ///
    /// # Safety
    /// Nobody else accesses the memory meanwhile.
    pub(crate) unsafe fn land(&self, bytes: &[u8]) -> bool {
        let (address, len) = self.whole();
        let takes = !matches!(self.storage, Storage::Device(_)) && bytes.len() <= len;
        if takes {
            // SAFETY: within the allocation, and the caller's promise.
            unsafe { address.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        takes
    }

    /// Returns the address and the length of `slot`.
    pub(crate) fn place(&self, slot: u32, size: u64) -> (*mut u8, usize) {
        (self.address(slot, size), self.shape.span(size))
    }

    fn address(&self, slot: u32, size: u64) -> *mut u8 {
        let (base, len) = self.whole();
        let range = self.slot(slot, size);
        assert!(range.end <= len, "slot {slot} for {size} bytes ends beyond the buffer of {len}");
        base.wrapping_add(range.start)
    }

    fn slot(&self, slot: u32, size: u64) -> Range<usize> {
        let span = self.shape.span(size);
        let start = slot as usize * span;
        start..start + span
    }

    /// Fills the first `count` slots with the messages from number `first` on. Device memory is filled by few copies from
    /// ordinary host memory, which the driver orders before work in the default stream only, as it does with a program's
    /// `cudaMemcpy`.
    pub(crate) fn fill(&mut self, count: u32, size: u64, first: u64) -> Result<(), Failure> {
        let shape = self.shape.clone();
        self.change(count, size, |slot, bytes| {
            let mut at = 0;
            for (offset, len) in shape.pieces(size) {
                pattern::fill(&mut bytes[offset..offset + len], first + u64::from(slot), at);
                at += len as u64;
            }
        })
    }

    /// Waits until the memory holds what was written to it.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        let Storage::Device(buffer) = &self.storage else { return Ok(()) };
        // The driver orders it after earlier copies, and it ends before the call returns.
        buffer.copy_to_host(0, &mut [0]).map_err(|error| Failure::failed(1, error))
    }

    /// Returns whether messages have gaps.
    pub(crate) fn has_gaps(&self) -> bool {
        matches!(self.shape, Shape::Blocks(_))
    }

    /// Overwrites the messages in the first `count` slots.
    pub(crate) fn poison(&mut self, count: u32, size: u64) -> Result<(), Failure> {
        self.change(count, size, |_, bytes| bytes.fill(POISON))
    }

    fn change(&mut self, count: u32, size: u64, mut change: impl FnMut(u32, &mut [u8])) -> Result<(), Failure> {
        let span = self.shape.span(size);
        let mut each = |first: u32, bytes: &mut [u8]| match span {
            0 => {}
            span => (first..).zip(bytes.chunks_exact_mut(span)).for_each(|(slot, bytes)| change(slot, bytes)),
        };
        match &mut self.storage {
            Storage::Host(pages) => each(0, &mut pages.as_mut_bytes()[..count as usize * span]),
            Storage::Shared(pages) => each(0, &mut pages.as_mut_bytes()[..count as usize * span]),
            Storage::Device(buffer) => {
                for slots in staged(count, span) {
                    self.staging.clear();
                    self.staging.resize(slots.len() * span, POISON);
                    each(slots.start, &mut self.staging);
                    let copied = buffer.copy_from_host(slots.start as usize * span, &self.staging);
                    copied.map_err(|error| Failure::failed(1, error))?;
                }
            }
        }
        Ok(())
    }

    /// Compares the first `count` slots with the messages from number `first` on, which were received over poison. Returns
    /// the first slot that differs, and its first difference.
    pub(crate) fn verify(&mut self, count: u32, size: u64, first: u64) -> Result<Option<(u32, Fault)>, Failure> {
        let span = self.shape.span(size);
        for slots in staged(count, span) {
            let range = slots.start as usize * span..slots.end as usize * span;
            let bytes = match &self.storage {
                Storage::Host(pages) => &pages.as_bytes()[range],
                Storage::Shared(pages) => &pages.as_bytes()[range],
                Storage::Device(buffer) => {
                    self.staging.resize(range.len(), 0);
                    buffer.copy_to_host(range.start, &mut self.staging).map_err(|error| Failure::failed(1, error))?;
                    &self.staging[..]
                }
            };
            for (slot, bytes) in slots.zip(bytes.chunks_exact(span)) {
                if let Some(fault) = self.fault(bytes, size, first + u64::from(slot)) {
                    return Ok(Some((slot, fault)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the first difference between the bytes of a slot and message `number`.
    fn fault(&self, bytes: &[u8], size: u64, number: u64) -> Option<Fault> {
        let (mut at, mut gap) = (0, 0);
        for (offset, len) in self.shape.pieces(size) {
            if let Some(touched) = bytes[gap..offset].iter().position(|&byte| byte != POISON) {
                return Some(Fault::Gap { at: gap + touched, found: bytes[gap + touched] });
            }
            if let Some(wrong) = pattern::first_mismatch(&bytes[offset..offset + len], number, at) {
                return Some(Fault::Data(wrong));
            }
            at += len as u64;
            gap = offset + len;
        }
        None
    }
}

/// Divides slots of `span` bytes into runs that are copied at a time. Slots without bytes are in none.
fn staged(count: u32, span: usize) -> impl Iterator<Item = Range<u32>> {
    const STAGED: usize = 4 << 20;
    let step = STAGED.checked_div(span).map_or(u32::MAX, |slots| slots.max(1) as u32);
    let count = if span == 0 { 0 } else { count };
    (0..count).step_by(step as usize).map(move |first| first..count.min(first.saturating_add(step)))
}

/// A difference between the message sent and the one received.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A byte of the message.
    Data(Mismatch),
    /// A byte between the message's pieces, which should not have been written.
    Gap { at: usize, found: u8 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Data(Mismatch { at, found, expected }) => {
                write!(f, "its first wrong byte is byte {at}, {found:#04x} instead of {expected:#04x}")
            }
            Fault::Gap { at, found } => {
                write!(f, "byte {at} of its memory, in a gap of the datatype, was overwritten with {found:#04x}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::parse_datatype;
    use super::*;

    #[test]
    fn faults_in_data_and_gaps_are_found() {
        let shape = Shape::Blocks(parse_datatype("vector:2:3:2").unwrap());
        let mut memory = Memory { storage: Storage::Host(vec![Page([0; 4096])]), shape, staging: Vec::new() };
        memory.poison(2, 8).unwrap();
        assert!(matches!(memory.verify(2, 8, 5).unwrap(), Some((0, Fault::Data(_)))));
        memory.fill(2, 8, 5).unwrap();
        assert!(memory.verify(2, 8, 5).unwrap().is_none());
        let Storage::Host(pages) = &mut memory.storage else { unreachable!("made above") };
        pages[0].0[10 + 2] = 0;
        assert!(matches!(memory.verify(2, 8, 5).unwrap(), Some((1, Fault::Gap { at: 2, found: 0 }))));
        let message = memory.verify(2, 8, 6).unwrap().unwrap().1.to_string();
        assert!(message.contains("byte 0"), "{message}");
    }

    #[test]
    fn runs_of_slots_cover_all_of_them() {
        let ends = |count, span| staged(count, span).map(|slots| (slots.start, slots.end)).collect::<Vec<_>>();
        assert_eq!(ends(3, 8), [(0, 3)]);
        assert_eq!(ends(3, 2 << 20), [(0, 2), (2, 3)]);
        assert_eq!(ends(2, 5 << 20), [(0, 1), (1, 2)]);
        assert_eq!(staged(2, 0).count(), 0);
    }
}
