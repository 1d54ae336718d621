//! Whether contexts take turns on a device.
//!
//! A device's compute engine works for one context at a time. It also makes copies within the device, and small copies from
//! the host. If another context has used it, the next such copy waits until the device changes contexts, about 0.15 ms (H200,
//! driver 580: `benches/results/2026-11-29-one-h200-turns`). Copies to the host and large ones from it do not wait, nor do
//! those of rows. No driver tells who uses a device, so the times of copies show it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The end of a copy was seen this soon, or its time says nothing.
const SEEN_WITHIN: Duration = Duration::from_micros(20);
/// What a slow copy adds to the suspicion, from which a fast one takes 1. Where an accumulate's data is copied before the
/// kernel of another context, and its answer after it, every other copy is slow.
const SLOW: u32 = 2;
/// So much suspicion is no chance: two slow copies in a row, or with one fast copy between them.
const ENOUGH: u32 = 3;
/// So many operations avoid turns before one is tried again.
const LASTING: u32 = 256;

/// What the times of small copies have shown. May be used from any thread.
#[derive(Debug)]
pub struct Turns {
    /// A small copy that takes longer has waited for another context.
    limit: Duration,
    /// How much the last copies speak for turns.
    suspicion: AtomicU32,
    /// Operations that avoid turns yet.
    left: AtomicU32,
}

/// The times of one copy under way.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    begun: Instant,
    /// When it was last seen under way.
    seen: Instant,
}

impl Watch {
    /// Watches a copy that begins now.
    pub fn begin() -> Watch {
        let now = Instant::now();
        Watch { begun: now, seen: now }
    }

    /// Notes that the copy is under way.
    pub fn see(&mut self) {
        self.seen = Instant::now();
    }
}

impl Turns {
    /// Begins without a copy. A device takes `turn` to change contexts.
    pub fn new(turn: Duration) -> Turns {
        Turns { limit: turn / 2, suspicion: AtomicU32::new(0), left: AtomicU32::new(0) }
    }

    /// Checks whether operations should avoid the compute engine.
    #[inline]
    pub fn are_taken(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }

    /// Counts an operation that has avoided it. After many, one is tried again.
    pub fn avoid(&self) {
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }

    /// Notes that a small copy has ended, which waited for no other work of its own context.
    pub fn note(&self, watch: &Watch) {
        let now = Instant::now();
        self.note_times(now - watch.begun, now - watch.seen);
    }

    /// Notes how long it took, and the time since it was last seen under way.
    fn note_times(&self, taken: Duration, unseen: Duration) {
        let suspicion = self.suspicion.load(Ordering::Relaxed);
        if taken < self.limit {
            self.suspicion.store(suspicion.saturating_sub(1), Ordering::Relaxed);
        } else if unseen <= SEEN_WITHIN && suspicion + SLOW < ENOUGH {
            self.suspicion.store(suspicion + SLOW, Ordering::Relaxed);
        } else if unseen <= SEEN_WITHIN {
            // One more slow copy suffices when the next one is tried.
            self.suspicion.store(ENOUGH - SLOW, Ordering::Relaxed);
            self.left.store(LASTING, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a turn takes.
    const LONG: Duration = Duration::from_micros(150);
    const SHORT: Duration = Duration::from_micros(9);

    #[test]
    fn slow_copies_in_a_row_show_turns_until_a_fast_one_is_seen() {
        let turns = Turns::new(LONG);
        for taken in [LONG, SHORT, SHORT, LONG] {
            turns.note_times(taken, SHORT);
            assert!(!turns.are_taken());
        }
        turns.note_times(LONG, SHORT);
        for _ in 0..LASTING {
            assert!(turns.are_taken());
            turns.avoid();
        }
        assert!(!turns.are_taken());
        turns.avoid();
        // The one that is tried again is slow, too.
        turns.note_times(LONG, SHORT);
        assert!(turns.are_taken());
        (0..LASTING).for_each(|_| turns.avoid());
        for taken in [SHORT, LONG] {
            turns.note_times(taken, SHORT);
            assert!(!turns.are_taken());
        }
    }

    #[test]
    fn every_second_copy_being_slow_shows_turns() {
        let turns = Turns::new(LONG);
        for taken in [SHORT, LONG, SHORT] {
            turns.note_times(taken, SHORT);
            assert!(!turns.are_taken());
        }
        turns.note_times(LONG, SHORT);
        assert!(turns.are_taken());
    }

    #[test]
    fn what_nobody_looked_at_shows_nothing() {
        let turns = Turns::new(LONG);
        (0..10).for_each(|_| turns.note_times(LONG, LONG));
        assert!(!turns.are_taken());
    }
}
