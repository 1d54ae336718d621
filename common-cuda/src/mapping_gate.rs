//! Times in which no memory of a peer is mapped, no kernels are loaded, and no costs are measured.
//!
//! The driver maps memory and loads kernels only after it has waited for streams of the context. A stream that waits for
//! a message would then wait for ever, if the message waits for the driver. So layers that let streams wait hold such
//! calls off. Other protocols carry messages meanwhile. Mappings that are open and kernels that are loaded are used as
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

/// Lets mappings be opened and kernels be loaded, or not.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Values of [`MappingsHeld`].
    held: AtomicUsize,
    /// Values of [`MappingsAllowed`].
    allowed: AtomicUsize,
    /// Shared by threads that open mappings or load kernels.
    opening: RwLock<()>,
}

/// While such a value lives, no memory of a peer is mapped anew, and no kernels are loaded.
#[derive(Debug)]
pub struct MappingsHeld {
    gate: Arc<Gate>,
}

/// While such a value lives, memory of peers is mapped and kernels are loaded although that is held off.
#[derive(Debug)]
pub struct MappingsAllowed {
    gate: Arc<Gate>,
}

impl Gate {
    /// Returns a guard for a mapping that is opened now, or kernels that are loaded, or `None` if that is held off.
    pub(crate) fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.opening.read_recursive();
        // `hold` and the end of `allow` count before they wait for threads inside. So a thread that may go on by their
        // counts is waited for.
        let open = self.held.load(Ordering::SeqCst) == 0 || self.allowed.load(Ordering::SeqCst) != 0;
        open.then_some(guard)
    }

    /// Returns whether mappings and kernels are held off.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst) != 0
    }

    /// Lets mappings be opened and kernels be loaded although that is held off.
    pub(crate) fn allow(self: &Arc<Self>) -> MappingsAllowed {
        self.allowed.fetch_add(1, Ordering::SeqCst);
        MappingsAllowed { gate: self.clone() }
    }

    /// Holds mappings and kernels off, after those being opened or loaded now.
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

impl Drop for MappingsAllowed {
    /// Waits for the mappings that are being opened.
    fn drop(&mut self) {
        self.gate.allowed.fetch_sub(1, Ordering::SeqCst);
        drop(self.gate.opening.write());
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
    fn mappings_that_are_held_off_are_allowed_for_a_while() {
        let gate = Arc::new(Gate::default());
        let held = gate.hold();
        let allowed = gate.allow();
        assert!(gate.enter().is_some());
        drop(allowed);
        assert!(gate.enter().is_none());
        drop(held);
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
