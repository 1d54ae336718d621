//! Atomic operations on words in registered memory, made by the CPU of the memory's owner.
//!
//! A word in host memory is changed by the processor's atomic instructions, so it is atomic also against the owner's own
//! atomics. A word on a device is read, changed and written back by copies under a lock. Such words are atomic only
//! against each other, not against kernels.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cableway_common_cuda::{DeviceError, Devices, Location};
use parking_lot::Mutex;

use super::wire::{Change, Update};

/// A word of 4 or 8 bytes, aligned to its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) address: usize,
    pub(super) width: u64,
    pub(super) location: Location,
}

impl Word {
    pub(super) fn is_aligned(&self) -> bool {
        (self.address as u64).is_multiple_of(self.width)
    }
}

/// Serialises changes of words on devices.
#[derive(Default)]
pub(super) struct Words {
    on_devices: Mutex<()>,
}

impl Words {
    /// Changes a word. Returns its value before. Everything that this thread, or a device copy that it has seen complete,
    /// wrote before is visible to whoever sees the new value.
    ///
    /// # Safety
    /// The word is allocated and aligned, and lies where `location` says.
    pub(super) unsafe fn change(&self, devices: &Devices, word: Word, change: Change) -> Result<u64, DeviceError> {
        if word.location.on_device() {
            let _alone = self.on_devices.lock();
            // SAFETY: the caller's promise.
            let old = unsafe { read(devices, word)? };
            let new = result(word.width, old, change).to_le_bytes();
            let address = std::ptr::with_exposed_provenance_mut(word.address);
            // SAFETY: the caller's promise; the value is as long as the word.
            unsafe { devices.copy_for_peer(address, new.as_ptr(), word.width as usize)? };
            return Ok(old);
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { change_host(word, change) })
    }

    /// Reads a word. Everything that was written before the value that it returns is visible afterwards.
    ///
    /// # Safety
    /// As [`change`](Self::change).
    pub(super) unsafe fn load(&self, devices: &Devices, word: Word) -> Result<u64, DeviceError> {
        if word.location.on_device() {
            let _alone = self.on_devices.lock();
            // SAFETY: the caller's promise.
            return unsafe { read(devices, word) };
        }
        Ok(if word.width == 8 {
            // SAFETY: the caller's promise.
            unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(word.address)) }.load(Ordering::SeqCst)
        } else {
            // SAFETY: as above.
            let atomic = unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(word.address)) };
            u64::from(atomic.load(Ordering::SeqCst))
        })
    }
}

/// Describes a word that is mapped here. Returns `None` if it is not aligned: a key can tell another base than its
/// memory has. Its owner refuses that.
pub(super) fn mapped(place: *mut u8, width: u64) -> Option<Word> {
    let word = Word { address: place.expose_provenance(), width, location: Location::HOST };
    word.is_aligned().then_some(word)
}

/// Changes a word in host memory, as [`Words::change`] does.
///
/// # Safety
/// As [`Words::change`].
pub(super) unsafe fn change_host(word: Word, change: Change) -> u64 {
    const ORDER: Ordering = Ordering::SeqCst;
    let to = |old| result(word.width, old, change);
    if word.width != 8 {
        // SAFETY: the caller's promise. Registered memory is shared with peers, so its owner does not borrow it.
        let atomic = unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(word.address)) };
        // The function always answers, so both results are the word before.
        let old = atomic.fetch_update(ORDER, ORDER, |old| Some(to(u64::from(old)) as u32));
        return u64::from(old.unwrap_or_else(|old| old));
    }
    // SAFETY: as above.
    let atomic = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(word.address)) };
    match change.update {
        Update::Set => atomic.swap(change.value, ORDER),
        Update::Add => atomic.fetch_add(change.value, ORDER),
        _ => atomic.fetch_update(ORDER, ORDER, |old| Some(to(old))).unwrap_or_else(|old| old),
    }
}

/// Reads a word on a device.
///
/// # Safety
/// As [`Words::change`].
unsafe fn read(devices: &Devices, word: Word) -> Result<u64, DeviceError> {
    let mut old = [0; 8];
    let address = std::ptr::with_exposed_provenance(word.address);
    // SAFETY: the caller's promise; a word has at most 8 bytes.
    unsafe { devices.copy_for_peer(old.as_mut_ptr(), address, word.width as usize)? };
    Ok(u64::from_le_bytes(old))
}

/// Returns the new value of a word, whose upper bits are zero if it has 4 bytes.
fn result(width: u64, old: u64, Change { update, value, compare }: Change) -> u64 {
    let mask = if width == 4 { u64::from(u32::MAX) } else { u64::MAX };
    mask & match update {
        Update::Add => old.wrapping_add(value),
        Update::Set => value,
        Update::CompareSet if old == compare & mask => value,
        Update::CompareSet => old,
        Update::And => old & value,
        Update::Or => old | value,
        Update::Xor => old ^ value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_both_widths_change_as_asked() {
        let (words, devices) = (Words::default(), Devices::none());
        let cases = [
            (Update::Add, 5, 0, 0xffff_fffe_ffff_fffd, 0xffff_ffff_0000_0002),
            (Update::Set, 7, 0, 1, 7),
            (Update::CompareSet, 7, 1, 1, 7),
            (Update::CompareSet, 7, 2, 1, 1),
            (Update::And, 0x00ff_0000_00ff, 0, u64::MAX, 0x00ff_0000_00ff),
            (Update::Or, 0x0001_0000_0001, 0, 2, 0x0001_0000_0003),
            (Update::Xor, 0x0003_0000_0003, 0, 1, 0x0003_0000_0002),
        ];
        for (update, value, compare, before, after) in cases {
            let change = Change { update, value, compare };
            let mut long = [before, 0x1111];
            let word = Word { address: long.as_mut_ptr().expose_provenance(), width: 8, location: Location::HOST };
            // SAFETY: an aligned word of this frame.
            assert_eq!(unsafe { words.change(&devices, word, change) }.unwrap(), before, "{update:?}");
            // SAFETY: as above.
            assert_eq!(unsafe { words.load(&devices, word) }.unwrap(), after);
            assert_eq!(long[1], 0x1111);
            let mut short = [before as u32, 0x1111];
            let word = Word { address: short.as_mut_ptr().expose_provenance(), width: 4, location: Location::HOST };
            // SAFETY: as above.
            assert_eq!(unsafe { words.change(&devices, word, change) }.unwrap(), before & 0xffff_ffff, "{update:?}");
            assert_eq!(short, [after as u32, 0x1111], "{update:?}");
        }
    }
}
