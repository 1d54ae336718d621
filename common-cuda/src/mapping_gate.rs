//! Times in which no memory of a peer is mapped or unmapped, no kernels are loaded, and no costs are measured.
//!
//! The driver maps memory, unmaps it and loads kernels only after it has waited for streams of the context. A stream that
//! waits for a message would then wait for ever, if the message waits for the driver. So layers that let streams wait hold
//! such calls off. Other protocols carry messages meanwhile. Mappings that are open and kernels that are loaded are used as
//! before. Mappings that nobody needs are closed later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

/// What closes a mapping.
type Closing = Box<dyn FnOnce() + Send>;

/// Lets mappings be opened and kernels be loaded, or not.
#[derive(Default)]
pub(crate) struct Gate {
    /// Values of [`MappingsHeld`].
    held: AtomicUsize,
    /// Values of [`MappingsAllowed`].
    allowed: AtomicUsize,
    /// Shared by threads that open or close mappings or load kernels.
    opening: RwLock<()>,
    /// Mappings that are to be closed once that is not held off.
    unclosed: Mutex<Vec<Closing>>,
}

/// While such a value lives, no memory of a peer is mapped anew or unmapped, and no kernels are loaded.
pub struct MappingsHeld {
    gate: Arc<Gate>,
}

/// While such a value lives, memory of peers is mapped and unmapped and kernels are loaded although that is held off.
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

    /// Closes a mapping that nobody uses: now, or once that is not held off any more.
    pub(crate) fn close(&self, closing: impl FnOnce() + Send + 'static) {
        if let Some(_closing) = self.enter() {
            return closing();
        }
        self.unclosed.lock().push(Box::new(closing));
        // Those who end a hold may have looked before.
        self.close_rest();
    }

    /// Returns whether mappings are to be closed.
    pub(crate) fn has_unclosed(&self) -> bool {
        !self.unclosed.lock().is_empty()
    }

    /// Closes what is to be closed, unless that is held off.
    fn close_rest(&self) {
        if let Some(_closing) = self.enter() {
            let unclosed = std::mem::take(&mut *self.unclosed.lock());
            unclosed.into_iter().for_each(|closing| closing());
        }
    }

    /// Lets mappings be opened and closed and kernels be loaded although that is held off.
    pub(crate) fn allow(self: &Arc<Self>) -> MappingsAllowed {
        self.allowed.fetch_add(1, Ordering::SeqCst);
        self.close_rest();
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
    /// Closes the mappings that are to be closed, if this is the last such value.
    fn drop(&mut self) {
        if self.gate.held.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.gate.close_rest();
        }
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
    fn mappings_are_closed_when_that_is_not_held_off() {
        let (gate, closed) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        let close = || {
            let closed = closed.clone();
            gate.close(move || {
                closed.fetch_add(1, Ordering::SeqCst);
            });
        };
        let count = || closed.load(Ordering::SeqCst);
        close();
        assert_eq!(count(), 1, "nothing is held");
        let held = gate.hold();
        close();
        assert_eq!((count(), gate.has_unclosed()), (1, true));
        let allowed = gate.allow();
        assert_eq!((count(), gate.has_unclosed()), (2, false));
        close();
        assert_eq!(count(), 3, "allowed");
        drop(allowed);
        close();
        assert_eq!(count(), 3);
        drop(held);
        assert_eq!((count(), gate.has_unclosed()), (4, false));
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
