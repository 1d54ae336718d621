//! Times in which no memory of a peer is mapped.
//!
//! The driver maps memory only after it has waited for streams of the context. A stream that waits for a message would
//! then wait for ever, if the message waits for the mapping. So layers that let streams wait hold mappings off. Other
//! protocols carry messages meanwhile; mappings that are open are used as before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

/// Lets mappings be opened, or not.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Values of [`MappingsHeld`].
    held: AtomicUsize,
    /// Shared by threads that open mappings.
    opening: RwLock<()>,
}

/// While such a value lives, no memory of a peer is mapped anew.
#[derive(Debug)]
pub struct MappingsHeld {
    gate: Arc<Gate>,
}

impl Gate {
    /// Returns a guard for a mapping that is opened now, or `None` if none may be.
    pub(crate) fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.opening.read_recursive();
        // `hold` counts before it waits for threads inside. So a thread that sees no count is waited for.
        (self.held.load(Ordering::SeqCst) == 0).then_some(guard)
    }

    /// Holds mappings off, after those being opened now.
    pub(crate) fn hold(self: &Arc<Self>) -> MappingsHeld {
        self.held.fetch_add(1, Ordering::SeqCst);
        drop(self.opening.write());
        MappingsHeld { gate: self.clone() }
    }
}

impl Drop for MappingsHeld {
    fn drop(&mut self) {
        self.gate.held.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_held_off_until_the_last_value_is_dropped() {
        let gate = Arc::new(Gate::default());
        let (first, second) = (gate.hold(), gate.hold());
        drop(first);
        assert!(gate.enter().is_none());
        drop(second);
        assert!(gate.enter().is_some());
    }

    #[test]
    fn holding_waits_for_a_mapping_that_is_being_opened() {
        let gate = Arc::new(Gate::default());
        let guard = gate.enter().expect("nothing is held");
        let other = gate.clone();
        let holder = std::thread::spawn(move || {
            let held = other.hold();
            assert!(other.enter().is_none());
            drop(held);
        });
        while gate.held.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(!holder.is_finished(), "it waits");
        drop(guard);
        holder.join().unwrap();
        assert!(gate.enter().is_some());
    }
}
