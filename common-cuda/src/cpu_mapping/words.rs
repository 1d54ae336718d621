//! Loads and stores of mapped device memory.
//!
//! The mapping is write-combining or uncached: the processor gathers stores before it sends them, and a load waits for
//! the device's response. Only aligned accesses of at most eight bytes are used, and special loads of sixteen bytes
//! that processors have for such memory. The effect of string instructions or vectorised loops on such memory is
//! unknown.

use std::sync::atomic::{Ordering, fence};

/// Copies into a mapping. On return every device and processor sees the bytes.
///
/// The processor gathers stores first; a store fence sends them. They are then posted writes, which reach the device
/// before any later write of this processor, such as the doorbell of a kernel launch. But the doorbell may be written
/// by another processor, or another device may read the memory over another link. So the last written bytes are read
/// back: the response to a read follows the earlier posted writes (PCI Express, 2.4.1). So this thread signals others
/// only after the bytes have arrived.
///
/// # Safety
/// `len` bytes at `from` are readable host memory, and those at `to` mapped device memory that no other code accesses.
pub(super) unsafe fn store(to: *mut u8, from: *const u8, len: usize) {
    let mut last = None;
    for (at, width) in steps(to as usize, len) {
        // SAFETY: within both ranges, and aligned in the mapping.
        unsafe {
            let (to, from) = (to.add(at), from.add(at));
            match width {
                8 => to.cast::<u64>().write_volatile(from.cast::<u64>().read_unaligned()),
                4 => to.cast::<u32>().write_volatile(from.cast::<u32>().read_unaligned()),
                2 => to.cast::<u16>().write_volatile(from.cast::<u16>().read_unaligned()),
                _ => to.write_volatile(from.read()),
            }
        }
        last = Some(at);
    }
    store_fence();
    if let Some(at) = last {
        // SAFETY: a byte of the mapping.
        unsafe { to.add(at).read_volatile() };
    }
    fence(Ordering::SeqCst);
}

/// Copies out of a mapping.
///
/// # Safety
/// `len` bytes at `to` are writable host memory of the caller alone, and those at `from` mapped device memory that no
/// one writes.
pub(super) unsafe fn load(to: *mut u8, from: *const u8, len: usize) {
    // Do not use values of these bytes, or of their cache lines, that were loaded earlier.
    fence(Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("sse4.1") {
        // SAFETY: the processor has the instruction; the rest is the caller's promise.
        return unsafe { load_streaming(to, from, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { load_words(to, from, len) }
}

/// # Safety
/// As [`load`].
unsafe fn load_words(to: *mut u8, from: *const u8, len: usize) {
    for (at, width) in steps(from as usize, len) {
        // SAFETY: within both ranges, and aligned in the mapping.
        unsafe {
            let (to, from) = (to.add(at), from.add(at));
            match width {
                8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_volatile()),
                4 => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_volatile()),
                2 => to.cast::<u16>().write_unaligned(from.cast::<u16>().read_volatile()),
                _ => to.write(from.read_volatile()),
            }
        }
    }
}

/// Copies with loads that fetch a whole line of write-combining memory, where the range has whole parts of sixteen
/// bytes.
///
/// # Safety
/// As [`load`], on a processor that has SSE 4.1.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.1")]
unsafe fn load_streaming(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_mfence, _mm_storeu_si128, _mm_stream_load_si128};
    const PART: usize = size_of::<__m128i>();
    let before = from.align_offset(PART).min(len);
    let whole = (len - before) / PART * PART;
    // SAFETY: within both ranges; the parts are aligned in the mapping. The fence is what these loads ask for where
    // others write to the memory.
    unsafe {
        load_words(to, from, before);
        if whole != 0 {
            _mm_mfence();
        }
        for at in (before..before + whole).step_by(PART) {
            _mm_storeu_si128(to.add(at).cast(), _mm_stream_load_si128(from.add(at).cast::<__m128i>()));
        }
        let at = before + whole;
        load_words(to.add(at), from.add(at), len - at);
    }
}

/// Sends gathered stores to the device.
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    // `dmb` orders nothing that leaves the processor's domain; `dsb` waits for it.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: touches no register and no memory of the program's.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// Returns offsets and widths that cover `len` bytes at an address. Each is aligned to its width. The first offset is
/// 0.
fn steps(address: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let width =
            [8, 4, 2, 1].into_iter().find(|width| (address + at).is_multiple_of(*width) && at + width <= len)?;
        at += width;
        Some((at - width, width))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_offset_is_copied_in_both_directions() {
        let data: Vec<u8> = (0..200).map(|byte| byte as u8 ^ 0x5A).collect();
        for offset in 0..33 {
            for len in (0..70).chain([100, 128, 150]) {
                let mut mapped = [0xEE_u64; 40];
                let place = mapped.as_mut_ptr().cast::<u8>();
                let source = &data[offset / 2..][..len];
                let (mut loaded, mut by_words) = ([0xDD_u8; 160], [0xDD_u8; 160]);
                // SAFETY: all of it is the test's, and long enough.
                unsafe {
                    place.write_bytes(0xEE, 320);
                    store(place.add(offset), source.as_ptr(), len);
                    load(loaded.as_mut_ptr().add(1), place.add(offset), len);
                    load_words(by_words.as_mut_ptr().add(1), place.add(offset), len);
                }
                let bytes: Vec<u8> = mapped.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert!(bytes[offset..offset + len] == *source, "{len} bytes at {offset}");
                assert!(bytes[..offset].iter().chain(&bytes[offset + len..]).all(|&byte| byte == 0xEE));
                assert!(loaded[1..=len] == *source && loaded == by_words && loaded[0] == 0xDD);
                assert!(loaded[len + 1..].iter().all(|&byte| byte == 0xDD));
            }
        }
    }

    #[test]
    fn accesses_are_few_and_aligned() {
        for address in 64..80 {
            for len in 0..40 {
                let all: Vec<_> = steps(address, len).collect();
                assert!(all.iter().all(|(at, width)| (address + at).is_multiple_of(*width)));
                assert_eq!(all.iter().map(|(_, width)| width).sum::<usize>(), len);
                assert!(all.len() <= len / 8 + 6);
            }
        }
    }
}
