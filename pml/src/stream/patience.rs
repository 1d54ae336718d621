//! Which calls wait for the program's work, after others have waited in vain.

use std::sync::atomic::{AtomicU32, Ordering};

/// The calls that do not wait after one that waited in vain double up to 2 to the power of this.
const MOST_DOUBLINGS: u32 = 10;

/// How often calls have waited in vain. Threads that use it at the same time may wait more or less often.
#[derive(Default)]
pub(super) struct Patience {
    in_vain: AtomicU32,
    /// The number of calls that do not wait.
    pass: AtomicU32,
}

impl Patience {
    /// Returns whether this call waits.
    pub(super) fn lasts(&self) -> bool {
        let left = self.pass.load(Ordering::Relaxed);
        if left != 0 {
            self.pass.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    /// Notes that a call did not wait in vain.
    pub(super) fn rewarded(&self) {
        self.in_vain.store(0, Ordering::Relaxed);
    }

    /// Notes that a call waited in vain.
    pub(super) fn in_vain(&self) {
        let times = self.in_vain.load(Ordering::Relaxed);
        self.in_vain.store((times + 1).min(MOST_DOUBLINGS), Ordering::Relaxed);
        self.pass.store(1 << times, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_wait_less_often_the_more_waited_in_vain() {
        let patience = Patience::default();
        let passed = || (0..).take_while(|_| !patience.lasts()).count();
        assert_eq!(passed(), 0);
        let after: Vec<_> = (0..13)
            .map(|_| {
                patience.in_vain();
                passed()
            })
            .collect();
        assert_eq!(after[..4], [1, 2, 4, 8]);
        assert_eq!(after[10..], [1024; 3]);
        patience.rewarded();
        assert_eq!(passed(), 0);
        patience.in_vain();
        assert_eq!(passed(), 1);
    }
}
