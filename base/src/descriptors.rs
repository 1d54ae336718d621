//! Divides the file descriptors of the process.

use std::mem::MaybeUninit;

/// Returns the number of descriptors for connections that are not authenticated yet: an eighth of the process's limit,
/// and at most `most`. The program keeps the rest.
pub fn share(most: usize) -> usize {
    of_limit(limit(), most)
}

fn of_limit(limit: u64, most: usize) -> usize {
    usize::try_from(limit / 8).unwrap_or(usize::MAX).clamp(1, most.max(1))
}

/// Returns the soft limit `RLIMIT_NOFILE`.
fn limit() -> u64 {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: getrlimit(2) fills the structure if it answers 0.
    unsafe {
        match libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) {
            0 => limit.assume_init().rlim_cur,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_keeps_most_descriptors() {
        assert_eq!(of_limit(1024, 64), 64);
        assert_eq!(of_limit(1024, 256), 128);
        assert_eq!(of_limit(64, 256), 8);
        assert_eq!(of_limit(0, 256), 1);
        assert_eq!(of_limit(u64::MAX, 256), 256);
        assert!((1..=64).contains(&share(64)));
    }
}
