//! Copies of up to 16 bytes to a device, which the stream writes as values.
//!
//! A copy engine takes 5.7 us for 8 bytes, from the call until the driver reports the end. The stream writes them as a
//! value, and then a word in host memory that the CPU polls, in 4.4 us (H200, driver 580). A second value takes 0.7 us
//! more. With four values a copy engine is faster.
//!
//! Values of one call become visible in their order, each after all earlier work of the stream
//! (`CU_STREAM_WRITE_VALUE_DEFAULT`). So the word in host memory says that the copy is done.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::gathered::Gathered;
use super::mechanism::{Entry, Mechanism, Progress};
use super::workspace::Workspace;
use crate::copy::{Direction, RowCopy};
use crate::driver::{Failure, Value};
use crate::location::MemoryClass;

/// Most values of one copy.
const MOST: usize = 2;

/// The copy of one operation.
#[derive(Default)]
pub(super) struct ByValues {
    under_way: Option<Signal>,
}

/// The copy is done when the word of the slot has this number.
struct Signal {
    slot: usize,
    number: u32,
    since: Instant,
}

impl Mechanism for ByValues {
    fn suits(&self, workspace: &Workspace, copies: &Gathered) -> bool {
        let [piece] = &copies.pieces[..] else { return false };
        copies.direction == Direction::HostToDevice
            // The driver API excludes managed memory.
            && copies.at.class == MemoryClass::Device
            && copies.is_plain()
            && lengths(piece, true).is_some()
            && !workspace.settings.landing.is_zero()
            && !workspace.slots.are_refused(copies.at.context)
    }

    fn begin(&mut self, workspace: &Workspace, copies: &mut Gathered, entry: &mut Entry<'_>) -> Result<(), Failure> {
        entry.enter()?;
        let context = &workspace.context;
        let [piece] = copies.pieces[..] else { return Ok(()) };
        // SAFETY: the source is valid and nobody writes it, by the promise of the caller that added it.
        let values = unsafe { values(&piece, context.limits().wide_values) };
        let (Some((mut values, count)), Some(words)) = (values, workspace.slots.words()) else { return Ok(()) };
        let stream = copies.ordered_stream(workspace)?;
        let Some(slot) = words.take() else { return Ok(()) };
        let number = words.word(slot).load(Ordering::Relaxed).wrapping_add(1);
        values[count] = Value { address: words.device_address(slot), bits: number.into(), wide: false };
        // SAFETY: the destination is the operation's until it is over; the slot is this copy's.
        match unsafe { context.driver.write_values(stream, &values[..=count]) } {
            Ok(()) => {
                self.under_way = Some(Signal { slot, number, since: Instant::now() });
                copies.pieces.clear();
            }
            // The driver may still write the word, so the slot is not used again.
            Err(failure) => {
                workspace.slots.refuse(copies.at.context);
                log::debug!("context {}: no values are written: {}", context.id, context.driver.reason(failure));
            }
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self, workspace: &Workspace, copies: &mut Gathered) -> Result<Progress, Failure> {
        // The words are made in `begin`, where the context is current.
        let Some(signal) = &self.under_way else { return Ok(Progress::Done) };
        let Some(words) = workspace.slots.words() else { return Ok(Progress::Done) };
        if words.word(signal.slot).load(Ordering::Acquire) != signal.number {
            if signal.since.elapsed() <= workspace.settings.landing {
                return Ok(Progress::Pending);
            }
            // If the device fails, no value is written, and the driver reports the failure.
            let _scope = workspace.context.enter()?;
            if !workspace.streams.is_idle(copies.direction)? {
                return Ok(Progress::Pending);
            }
        }
        words.give_back(signal.slot);
        self.under_way = None;
        Ok(Progress::Done)
    }

    fn abandon(&mut self, workspace: &Workspace, direction: Direction) {
        if self.under_way.take().is_some() {
            workspace.streams.synchronise(direction);
        }
    }

    /// The slot of a copy whose end was not seen is not used again.
    fn clear(&mut self) {
        self.under_way = None;
    }
}

/// Returns the lengths of the values of a copy, in order, followed by zeroes. Returns `None` if the copy needs too many
/// values or does not consist of aligned words.
fn lengths(piece: &RowCopy, wide: bool) -> Option<[usize; MOST]> {
    let mut lengths = [0; MOST];
    let (mut address, mut left) = (piece.dst as usize, piece.width);
    for len in &mut lengths {
        *len = match (address % 8, left) {
            (_, 0) => break,
            (0, 8..) if wide => 8,
            (0 | 4, 4..) => 4,
            _ => return None,
        };
        (address, left) = (address + *len, left - *len);
    }
    (left == 0).then_some(lengths)
}

/// Returns the values of a copy, with room for one more, and their number.
///
/// # Safety
/// The source is valid and does not change meanwhile.
unsafe fn values(piece: &RowCopy, wide: bool) -> Option<([Value; MOST + 1], usize)> {
    let (mut values, mut count, mut at) = ([Value::default(); MOST + 1], 0, 0);
    for len in lengths(piece, wide)?.into_iter().take_while(|&len| len != 0) {
        let mut bytes = [0; 8];
        // SAFETY: the lengths add up to the width, and the source has as many bytes by the caller's promise.
        unsafe { piece.src.add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        // Devices are little-endian.
        values[count] =
            Value { address: (piece.dst as usize + at) as u64, bits: u64::from_le_bytes(bytes), wide: len == 8 };
        (count, at) = (count + 1, at + len);
    }
    Some((values, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: usize, src: &[u8], width: usize) -> RowCopy {
        RowCopy::run(std::ptr::without_provenance_mut(address), src.as_ptr(), width)
    }

    #[test]
    fn up_to_two_aligned_words_become_values() {
        let both = |address, len| {
            let piece = piece(address, &[], len);
            (lengths(&piece, true), lengths(&piece, false))
        };
        assert_eq!(both(0x1000, 8), (Some([8, 0]), Some([4, 4])));
        assert_eq!(both(0x1000, 4), (Some([4, 0]), Some([4, 0])));
        assert_eq!(both(0x1004, 8), (Some([4, 4]), Some([4, 4])));
        assert_eq!(both(0x1000, 12), (Some([8, 4]), None));
        assert_eq!(both(0x1004, 12), (Some([4, 8]), None));
        assert_eq!(both(0x1000, 16), (Some([8, 8]), None));
        for (address, len) in [(0x1004, 16), (0x1000, 20), (0x1000, 24), (0x1000, 6), (0x1002, 4), (0x1001, 8), (8, 1)]
        {
            assert_eq!(both(address, len), (None, None), "{len} bytes at {address:#x}");
        }
    }

    #[test]
    fn values_hold_the_bytes_of_the_source() {
        let bytes: Vec<u8> = (1..=16).collect();
        for (address, len, wide) in
            [(0, 16, true), (4, 12, true), (0, 12, true), (4, 8, true), (8, 8, false), (0, 4, false)]
        {
            // SAFETY: the source is the test's.
            let (values, count) = unsafe { values(&piece(address, &bytes, len), wide) }.unwrap();
            let mut written = [0_u8; 32];
            for value in &values[..count] {
                let (at, len) = (value.address as usize, if value.wide { 8 } else { 4 });
                assert!(at.is_multiple_of(len) && value.bits.to_le_bytes()[len..].iter().all(|&byte| byte == 0));
                written[at..at + len].copy_from_slice(&value.bits.to_le_bytes()[..len]);
            }
            assert_eq!(written[address..address + len], bytes[..len]);
            assert_eq!(written.iter().filter(|&&byte| byte != 0).count(), len, "nothing beside them");
        }
    }
}
