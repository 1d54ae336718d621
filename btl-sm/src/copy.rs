//! Copies of a few bytes without a call.

/// Copies `len` bytes, at most 64, by a few moves that may overlap each other.
///
/// # Safety
/// `len` is at most 64; that many bytes at `from` are readable and at `to` writable, and the two do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_short(to: *mut u8, from: *const u8, len: usize) {
    debug_assert!(len <= 64);
    // SAFETY: every move lies within the first `len` bytes of either side.
    unsafe {
        if len >= 8 {
            match len {
                ..=16 => both_ends::<u64>(to, from, len),
                17..=32 => both_ends::<u128>(to, from, len),
                _ => both_ends::<[u128; 2]>(to, from, len),
            }
        } else if len >= 4 {
            both_ends::<u32>(to, from, len);
        } else if len != 0 {
            let (first, middle, last) = (*from, *from.add(len / 2), *from.add(len - 1));
            *to = first;
            *to.add(len / 2) = middle;
            *to.add(len - 1) = last;
        }
    }
}

/// # Safety
/// As [`copy_short`], and `len` is between one and two `T`.
#[inline(always)]
unsafe fn both_ends<T>(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: both moves lie within `len` bytes.
    unsafe {
        let first = from.cast::<T>().read_unaligned();
        let last = from.add(len - size_of::<T>()).cast::<T>().read_unaligned();
        to.cast::<T>().write_unaligned(first);
        to.add(len - size_of::<T>()).cast::<T>().write_unaligned(last);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_length() {
        let source: Vec<u8> = (1..=64).collect();
        for len in 0..=64 {
            let mut target = [0_u8; 66];
            // SAFETY: both have at least `len` bytes and are distinct.
            unsafe { super::copy_short(target.as_mut_ptr().add(1), source.as_ptr(), len) };
            assert_eq!(target[0], 0);
            assert_eq!(target[1..=len], source[..len]);
            assert!(target[len + 1..].iter().all(|&byte| byte == 0));
        }
    }
}
