//! Non-temporal stores, for memory that another core reads next.
//!
//! A line that one core writes and another reads travels between their caches. If the two cores share no cache, this
//! reaches only 2 GB/s on the measured machines (AMD EPYC, two cores of different L3 domains). Lines that are stored to
//! memory and read from there reach 15 GB/s, wherever the two cores are.

use crate::MAX_HEADER;

/// Stores `header`, then `payload`, as whole lines of 64 bytes. Zeroes the rest of their first and last line. The
/// stores are ordered before every later store of this thread.
///
/// # Safety
/// `to` is valid for writes of both lengths together. No other code accesses this memory or the rest of its first and
/// last line.
pub(crate) unsafe fn store(to: *mut u8, header: &[u8], payload: &[u8]) {
    // Assemble the first lines here, until one ends within the payload.
    let before = to.addr() % LINE;
    let head = (before + header.len()).next_multiple_of(LINE);
    let (beside, payload) = payload.split_at((head - before - header.len()).min(payload.len()));
    let mut first = [0; LINE + MAX_HEADER];
    let first = &mut first[..head];
    first[before..before + header.len()].copy_from_slice(header);
    first[before + header.len()..][..beside.len()].copy_from_slice(beside);
    let (lines, rest) = payload.split_at(payload.len() - payload.len() % LINE);
    let mut last = [0; LINE];
    last[..rest.len()].copy_from_slice(rest);
    let last = if rest.is_empty() { &[][..] } else { &last[..] };
    // SAFETY: these are the lines of the message, by the caller's promise.
    unsafe {
        let at = store_lines(to.wrapping_sub(before), first);
        let at = store_lines(at, lines);
        store_lines(at, last);
    }
    order();
}

const LINE: usize = 64;

/// Stores whole lines. Returns the address after them.
///
/// # Safety
/// `to` is aligned to a line. As many bytes as `from` has are writable there.
#[inline]
unsafe fn store_lines(to: *mut u8, from: &[u8]) -> *mut u8 {
    let mut to = to;
    for line in from.chunks_exact(LINE) {
        // SAFETY: the caller's promise.
        unsafe { store_line(to, line.as_ptr()) };
        to = to.wrapping_add(LINE);
    }
    to
}

/// # Safety
/// `to` is aligned to a line. A line is writable there and readable at `from`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn store_line(to: *mut u8, from: *const u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (to, from) = (to.cast::<__m128i>(), from.cast::<__m128i>());
    // SAFETY: the caller's promise. SSE2 is part of x86-64.
    unsafe {
        let (first, second) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
        let (third, fourth) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
        _mm_stream_si128(to, first);
        _mm_stream_si128(to.add(1), second);
        _mm_stream_si128(to.add(2), third);
        _mm_stream_si128(to.add(3), fourth);
    }
}

/// Orders the stores. A later release store alone would not.
#[cfg(target_arch = "x86_64")]
fn order() {
    // SAFETY: SSE is part of x86-64. A fence accesses no memory.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// # Safety
/// As for the other `store_line`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn store_line(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise. The source is no part of the segment.
    unsafe { to.copy_from_nonoverlapping(from, LINE) };
}

#[cfg(not(target_arch = "x86_64"))]
fn order() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_every_length_anywhere_and_nothing_beyond_its_lines() {
        #[repr(align(64))]
        struct Lines([u8; 18 * LINE]);
        let source: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for header in [0, 1, 16, 24, 32, 63, 64, 65, MAX_HEADER] {
            for len in (0..200).chain([511, 512, 513, 640]) {
                for shift in [0, 1, 24, 40, 63] {
                    let mut lines = Lines([0xee; 18 * LINE]);
                    let (head, payload) = (&source[100..100 + header], &source[shift..shift + len]);
                    let start = LINE + shift;
                    // SAFETY: within the lines of this test.
                    unsafe { store(lines.0.as_mut_ptr().add(start), head, payload) };
                    let what = format!("{header} and {len} at {shift}");
                    assert_eq!(&lines.0[start..start + header], head, "{what}");
                    assert_eq!(&lines.0[start + header..start + header + len], payload, "{what}");
                    let end = (start + header + len).next_multiple_of(LINE);
                    let around = lines.0[..LINE].iter().chain(&lines.0[end..]);
                    assert!(around.into_iter().all(|&byte| byte == 0xee), "{what}");
                }
            }
        }
    }
}
