//! Prefetches of lines that another processor has.
//!
//! A line that a processor of the node has written takes about 100 ns to get. The copies of a message would wait for it,
//! but what happens before the copy need not.

const LINE: usize = 64;

/// Fetches the lines of `len` bytes for reading.
#[inline(always)]
pub(crate) fn for_reading(from: *const u8, len: usize) {
    each_line(from, len, |line| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address has no effect but on caches.
        unsafe {
            std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch of any address has no effect but on caches.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        let _ = line;
    });
}

/// Fetches the lines of `len` bytes for writing. Other processors lose them.
#[inline(always)]
pub(crate) fn for_writing(from: *const u8, len: usize) {
    each_line(from, len, |line| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address has no effect but on caches. Processors without it take it for a no-op.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch of any address has no effect but on caches.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        let _ = line;
    });
}

#[inline(always)]
fn each_line(from: *const u8, len: usize, mut act: impl FnMut(*const u8)) {
    let offset = from as usize % LINE;
    for line in 0..(offset + len).div_ceil(LINE) {
        act(from.wrapping_sub(offset).wrapping_add(line * LINE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(offset: usize, len: usize) -> Vec<usize> {
        let base = 1 << 20;
        let mut lines = Vec::new();
        each_line((base + offset) as *const u8, len, |line| lines.push(line as usize - base));
        lines
    }

    #[test]
    fn exactly_the_lines_of_the_bytes_are_fetched() {
        assert_eq!(lines(0, 64), [0]);
        assert_eq!(lines(63, 2), [0, 64]);
        assert_eq!(lines(8, 121), [0, 64, 128]);
        assert_eq!(lines(8, 120), [0, 64]);
        assert_eq!(lines(0, 0), []);
    }
}
