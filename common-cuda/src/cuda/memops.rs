//! Tiny copies to a device as memory operations of a stream.
//!
//! To copy 8 bytes to a device, and to hear that they are there, takes a copy engine 5.7 us (H200, driver 580); to have
//! the stream write them as a value, and then another value to a word of the host's, which is looked at, 4.4 us. Nothing
//! is asked of the driver at the end, as with copies the other way ([`landing`](super::landing)). A second value costs
//! 0.7 us more, and with four a copy engine is faster.
//!
//! The values are written in their order, each after what the stream wrote before it can be seen, by host and devices:
//! that is what the operation does unless it is told otherwise (`CU_STREAM_WRITE_VALUE_DEFAULT`, CUDA driver API). So the
//! word tells of all that was issued to the stream before.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute_enum as Attribute, CUstream, CUstreamBatchMemOpType_enum as Operation,
};
use parking_lot::Mutex;

use super::context::Context;
use super::driver::Driver;
use super::host_words::HostWords;
use super::info;
use super::pieces::Piece;

/// Most values that are written for one copy.
const MOST: usize = 2;

/// Copies that may be under way in a context, and bytes between their words: a line of the caches.
const PLACES: usize = 64;
const PLACE: usize = 64;

/// `CUstreamBatchMemOpParams` of an operation that writes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct WriteValue {
    operation: c_uint,
    address: u64,
    /// Of four bytes the lower ones.
    value: u64,
    flags: c_uint,
    /// The driver's own.
    alias: u64,
    padding: u64,
}

const _: () = {
    use cudarc::driver::sys::{
        CUstreamBatchMemOpParams_union as Parameters,
        CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st as Write,
    };
    use std::mem::offset_of;
    assert!(size_of::<WriteValue>() == size_of::<Parameters>() && align_of::<WriteValue>() == align_of::<Parameters>());
    assert!(offset_of!(WriteValue, address) == offset_of!(Write, address));
    assert!(offset_of!(WriteValue, value) == offset_of!(Write, __bindgen_anon_1));
    assert!(offset_of!(WriteValue, flags) == offset_of!(Write, flags));
};

impl WriteValue {
    const NONE: WriteValue = WriteValue { operation: 0, address: 0, value: 0, flags: 0, alias: 0, padding: 0 };

    fn new(address: u64, value: u64, wide: bool) -> WriteValue {
        let operation = match wide {
            true => Operation::CU_STREAM_MEM_OP_WRITE_VALUE_64,
            false => Operation::CU_STREAM_MEM_OP_WRITE_VALUE_32,
        };
        WriteValue { operation: operation as c_uint, address, value, ..WriteValue::NONE }
    }
}

/// How many bytes the next value has, of `left` bytes at an address; none if no value fits there.
fn next_value(address: u64, left: usize, wide: bool) -> Option<usize> {
    match (address % 8, left) {
        (0, 8..) if wide => Some(8),
        (0 | 4, 4..) => Some(4),
        _ => None,
    }
}

/// How many values a copy takes; none if it is not for values.
fn values(address: u64, len: usize, wide: bool) -> Option<usize> {
    let (mut at, mut count) = (0, 0);
    while at < len {
        at += next_value(address + at as u64, len - at, wide).filter(|_| count < MOST)?;
        count += 1;
    }
    Some(count)
}

/// What a context keeps for such copies.
#[derive(Default)]
pub(super) struct Memops {
    /// None before the first; within, none if the words cannot be had.
    words: Mutex<Option<Option<Words>>>,
    /// The driver refuses: of memory that has a context, and of other memory.
    refused: [AtomicBool; 2],
}

/// Words that devices write when they are done, one for each copy under way.
struct Words {
    memory: HostWords,
    free: Vec<usize>,
    /// Whether values of 64 bits are written.
    wide: bool,
}

/// The word that will tell of a copy.
pub(super) struct Signal {
    word: *const AtomicU32,
    place: usize,
    number: u32,
    /// Of the events recorded in the stream, the last that it tells of, too.
    pub(super) after: u64,
    pub(super) since: Instant,
}

// SAFETY: an atomic, which stays as long as the context, which the operation keeps.
unsafe impl Send for Signal {}

impl Signal {
    pub(super) fn seen(&self) -> bool {
        // SAFETY: as above. What the device wrote before is there when this is seen.
        unsafe { &*self.word }.load(Ordering::Acquire) == self.number
    }
}

impl Memops {
    /// Whether a copy to memory with a context, or without, may be for values.
    pub(super) fn suits(&self, piece: &Piece, has_context: bool) -> bool {
        piece.rows == 1
            && values(piece.dst as u64, piece.width, true).is_some()
            && !self.refused[usize::from(has_context)].load(Ordering::Relaxed)
    }

    /// Has the stream make a copy that suits, out of host memory; none if it cannot. `after` is the number of an event
    /// that was recorded in it. The context is current.
    ///
    /// # Safety
    /// The piece's ranges are valid, nobody writes the source now, and nobody touches the destination until the signal
    /// is seen, or the stream done with what it holds now.
    pub(super) unsafe fn issue(
        &self,
        context: &Context,
        (piece, has_context): (&Piece, bool),
        (stream, after): (CUstream, u64),
    ) -> Option<Signal> {
        let driver = context.driver;
        let mut words = self.words.lock();
        let Some(words) = words.get_or_insert_with(|| Words::new(driver)) else {
            self.refused.iter().for_each(|refused| refused.store(true, Ordering::Relaxed));
            return None;
        };
        // SAFETY: the caller's promise of the source.
        let (mut writes, count) = unsafe { fill(piece, words.wide) }?;
        let place = words.free.pop()?;
        // SAFETY: an aligned word of the memory, which stays as long as the context.
        let word = unsafe { &*words.memory.address::<u8>().add(place * PLACE).cast::<AtomicU32>() };
        let number = word.load(Ordering::Relaxed).wrapping_add(1);
        writes[count] = WriteValue::new(words.memory.device() + (place * PLACE) as u64, number.into(), false);
        // SAFETY: so many operations, on the destination and on the word; the stream is of the current context.
        match unsafe { driver.cuStreamBatchMemOp(stream, count as c_uint + 1, writes.as_mut_ptr(), 0) } {
            Ok(()) => Some(Signal { word, place, number, after, since: Instant::now() }),
            Err(failure) => {
                // The place is left: nothing is known of whether the word will be written.
                self.refused[usize::from(has_context)].store(true, Ordering::Relaxed);
                log::debug!("context {}: no values are written to memory: {}", context.id, driver.reason(failure));
                None
            }
        }
    }

    /// Of a copy that nobody asks about any more. A word that was not seen is never used again.
    pub(super) fn give_back(&self, signal: &Signal) {
        if let Some(Some(words)) = self.words.lock().as_mut().filter(|_| signal.seen()) {
            words.free.push(signal.place);
        }
    }

    /// The context is current, and nothing is under way in it.
    pub(super) fn destroy(&self, driver: &Driver) {
        if let Some(Some(words)) = self.words.lock().take() {
            words.memory.destroy(driver);
        }
    }
}

impl Words {
    #[cold]
    fn new(driver: &Driver) -> Option<Words> {
        let mut device: CUdevice = 0;
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
        // SAFETY: fills in the current context's device.
        let wide = unsafe { driver.cuCtxGetDevice(&raw mut device) }
            .and_then(|()| info::attribute(driver, device, attribute))
            .unwrap_or(0);
        match HostWords::new(driver, PLACES * PLACE) {
            Ok(memory) => Some(Words { memory, free: (0..PLACES).collect(), wide: wide != 0 }),
            Err(failure) => {
                log::debug!("no words for tiny copies: {}", driver.reason(failure));
                None
            }
        }
    }
}

/// The operations that write what is to be copied, with room for one more, and how many they are.
///
/// # Safety
/// The source is valid, and nobody writes it meanwhile.
unsafe fn fill(piece: &Piece, wide: bool) -> Option<([WriteValue; MOST + 1], usize)> {
    let count = values(piece.dst as u64, piece.width, wide)?;
    let mut writes = [WriteValue::NONE; MOST + 1];
    let mut at = 0;
    for write in &mut writes[..count] {
        let address = piece.dst as u64 + at as u64;
        let len = next_value(address, piece.width - at, wide)?;
        let mut value = [0; 8];
        // SAFETY: so many bytes of the source are left, by the caller's promise.
        unsafe { piece.src.add(at).copy_to_nonoverlapping(value.as_mut_ptr(), len) };
        // Devices keep numbers as little-endian ones, and a value of four bytes is in the lower half.
        *write = WriteValue::new(address, u64::from_le_bytes(value), len == 8);
        at += len;
    }
    Some((writes, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_aligned_words_are_for_values() {
        let both = |address, len| (values(address, len, true), values(address, len, false));
        assert_eq!(both(0x1000, 8), (Some(1), Some(2)));
        assert_eq!(both(0x1000, 4), (Some(1), Some(1)));
        assert_eq!(both(0x1004, 8), (Some(2), Some(2)));
        assert_eq!(both(0x1000, 12), (Some(2), None));
        assert_eq!(both(0x1004, 12), (Some(2), None));
        assert_eq!(both(0x1000, 16), (Some(2), None));
        for (address, len) in [(0x1004, 16), (0x1000, 20), (0x1000, 24), (0x1000, 6), (0x1002, 4), (0x1001, 8), (0, 1)]
        {
            assert_eq!(both(address, len), (None, None), "{len} bytes at {address:#x}");
        }
    }

    #[test]
    fn values_are_the_bytes_and_their_places() {
        let bytes: Vec<u8> = (1..=16).collect();
        let mut memory = [0_u64; 4];
        let dst = memory.as_mut_ptr().cast::<u8>();
        for (offset, len, wide) in
            [(0, 16, true), (4, 12, true), (0, 12, true), (4, 8, true), (8, 8, false), (0, 4, false)]
        {
            memory.fill(0);
            let dst = dst.wrapping_add(offset);
            let piece = Piece { dst, dst_pitch: len, src: bytes.as_ptr(), src_pitch: len, width: len, rows: 1 };
            // SAFETY: the source is the test's.
            let (writes, count) = unsafe { fill(&piece, wide) }.unwrap();
            let base = memory.as_ptr() as u64;
            let mut got = [0_u8; 32];
            for write in &writes[..count] {
                let wide = write.operation == Operation::CU_STREAM_MEM_OP_WRITE_VALUE_64 as c_uint;
                let (at, bytes) = ((write.address - base) as usize, write.value.to_le_bytes());
                let len = if wide { 8 } else { 4 };
                assert!(at.is_multiple_of(len) && bytes[len..].iter().all(|&byte| byte == 0));
                got[at..at + len].copy_from_slice(&bytes[..len]);
            }
            assert_eq!(got[offset..offset + len], bytes[..len]);
            assert!(got.iter().filter(|&&byte| byte != 0).count() == len);
        }
    }
}
