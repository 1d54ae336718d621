//! Times in which no memory of a peer is mapped or unmapped, no kernels are loaded, and no costs are measured.
//!
//! The driver maps memory, unmaps it and loads kernels only after it has waited for streams of the context. A stream that
//! waits for a message would then wait for ever, if the message waits for the driver. So layers that let streams wait hold
//! such calls off. Other protocols carry messages meanwhile. Mappings that are open and kernels that are loaded are used as
//! before. Mappings that nobody needs are closed later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_base::fork::Origin;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

/// What closes a mapping.
type Closing = Box<dyn FnOnce() + Send>;
/// Called when a mapping is to be closed later. Returns false once it is not needed any more.
type Waker = Box<dyn Fn() -> bool + Send>;

/// Who holds mappings off. It overrides its own holds, and not those of others: several engines of a process share devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(usize);

impl Holder {
    /// Returns the holder that an engine is. The engine lives as long as its holds.
    pub fn of<T>(engine: &T) -> Holder {
        Holder(std::ptr::from_ref(engine).addr())
    }
}

/// The holders of values of [`MappingsHeld`] and of [`MappingsAllowed`], one for each value.
#[derive(Default)]
struct Holders {
    /// `None` for a hold that nobody overrides.
    held: Vec<Option<Holder>>,
    allowed: Vec<Holder>,
}

impl Holders {
    /// Returns whether one of those that override their holds has all of the holds.
    fn is_overridden(&self) -> bool {
        self.allowed.iter().any(|allowed| self.held.iter().all(|held| *held == Some(*allowed)))
    }
}

/// Removes one of the equal values.
fn remove_one<T: PartialEq>(from: &mut Vec<T>, value: &T) {
    if let Some(at) = from.iter().position(|one| one == value) {
        from.swap_remove(at);
    }
}

/// Lets mappings be opened and closed and kernels be loaded, or not.
#[derive(Default)]
pub(crate) struct Gate {
    /// Values of [`MappingsHeld`].
    held: AtomicUsize,
    holders: Mutex<Holders>,
    /// Shared by threads that open or close mappings or load kernels.
    opening: RwLock<()>,
    /// Mappings that are to be closed once that is not held off.
    unclosed: Mutex<Vec<Closing>>,
    /// Locked while they are closed.
    closing: Mutex<()>,
    wakers: Mutex<Vec<Waker>>,
}

/// While such a value lives, no memory of a peer is mapped anew or unmapped, and no kernels are loaded.
pub struct MappingsHeld {
    gate: Arc<Gate>,
    holder: Option<Holder>,
    origin: Origin,
}

/// While such a value lives, memory of peers is mapped and unmapped and kernels are loaded although its holder holds that off.
pub struct MappingsAllowed {
    gate: Arc<Gate>,
    holder: Holder,
}

impl Gate {
    /// Returns a guard for mappings that are opened or closed now, or kernels that are loaded, or `None` if that is held
    /// off.
    pub(crate) fn enter(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let guard = self.opening.read_recursive();
        // `hold` and the end of `allow` count before they wait for threads inside. So a thread that may go on by their
        // counts is waited for.
        let open = self.held.load(Ordering::SeqCst) == 0 || self.holders.lock().is_overridden();
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
        if self.has_unclosed() {
            self.wakers.lock().retain(|waker| waker());
        }
    }

    /// Has a function called whenever a mapping is to be closed later, until it returns false. It must not use the gate.
    pub(crate) fn add_waker(&self, waker: impl Fn() -> bool + Send + 'static) {
        self.wakers.lock().push(Box::new(waker));
    }

    /// Returns whether mappings are to be closed.
    pub(crate) fn has_unclosed(&self) -> bool {
        !self.unclosed.lock().is_empty()
    }

    /// Closes what is to be closed, unless that is held off. All of it is closed then, also what another thread closes.
    pub(crate) fn close_rest(&self) {
        if let Some(_entered) = self.enter() {
            let _one = self.closing.lock();
            let unclosed = std::mem::take(&mut *self.unclosed.lock());
            unclosed.into_iter().for_each(|closing| closing());
        }
    }

    /// Lets mappings be opened and closed and kernels be loaded although `holder` holds that off.
    pub(crate) fn allow(self: &Arc<Self>, holder: Holder) -> MappingsAllowed {
        self.holders.lock().allowed.push(holder);
        let allowed = MappingsAllowed { gate: self.clone(), holder };
        self.close_rest();
        allowed
    }

    /// Holds mappings and kernels off, after those being opened, closed or loaded now.
    pub(crate) fn hold(self: &Arc<Self>, holder: Holder) -> MappingsHeld {
        self.count_hold(Some(holder))
    }

    /// Does the same, and [`allow`](Self::allow) has no effect meanwhile.
    pub(crate) fn hold_firmly(self: &Arc<Self>) -> MappingsHeld {
        self.count_hold(None)
    }

    fn count_hold(self: &Arc<Self>, holder: Option<Holder>) -> MappingsHeld {
        self.holders.lock().held.push(holder);
        self.held.fetch_add(1, Ordering::SeqCst);
        drop(self.opening.write());
        MappingsHeld { gate: self.clone(), holder, origin: Origin::here() }
    }
}

impl Drop for MappingsHeld {
    /// Closes the mappings that are to be closed, if this is the last such value. The driver may wait for streams then.
    fn drop(&mut self) {
        let last = self.gate.held.fetch_sub(1, Ordering::SeqCst) == 1;
        // The driver does not work in a forked child, and locks may be held for ever.
        if self.origin.is_here() {
            remove_one(&mut self.gate.holders.lock().held, &self.holder);
            if last {
                self.gate.close_rest();
            }
        }
    }
}

impl Drop for MappingsAllowed {
    /// Waits for the mappings that are being opened.
    fn drop(&mut self) {
        remove_one(&mut self.gate.holders.lock().allowed, &self.holder);
        drop(self.gate.opening.write());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Holder = Holder(1);
    const OTHER: Holder = Holder(2);

    #[test]
    fn a_holder_overrides_its_own_holds_only() {
        let gate = Arc::new(Gate::default());
        let (own, again) = (gate.hold(ONE), gate.hold(ONE));
        let allowed = gate.allow(ONE);
        assert!(gate.enter().is_some());
        let others = gate.hold(OTHER);
        assert!(gate.enter().is_none(), "the other one's stream may wait");
        let both = gate.allow(OTHER);
        assert!(gate.enter().is_none(), "neither has all of the holds");
        drop(others);
        assert!(gate.enter().is_some());
        drop(allowed);
        assert!(gate.enter().is_none(), "the other one has no hold left");
        drop((own, again, both));
        assert!(gate.enter().is_some());
    }

    #[test]
    fn mappings_are_held_off_until_the_last_value_is_dropped() {
        let gate = Arc::new(Gate::default());
        let (first, second) = (gate.hold(ONE), gate.hold(ONE));
        drop(first);
        assert!(gate.enter().is_none());
        drop(second);
        assert!(gate.enter().is_some());
    }

    #[test]
    fn mappings_that_are_held_off_are_allowed_for_a_while() {
        let gate = Arc::new(Gate::default());
        let held = gate.hold(ONE);
        let allowed = gate.allow(ONE);
        assert!(gate.enter().is_some());
        drop(allowed);
        assert!(gate.enter().is_none());
        drop(held);
        assert!(gate.enter().is_some());
    }

    #[test]
    fn a_firm_hold_is_not_overridden() {
        let gate = Arc::new(Gate::default());
        let allowed = gate.allow(ONE);
        let firm = gate.hold_firmly();
        assert!(gate.is_held() && gate.enter().is_none());
        drop(firm);
        assert!(gate.enter().is_some());
        drop(allowed);
    }

    #[test]
    fn those_who_close_mappings_are_woken() {
        let (gate, woken) = (Arc::new(Gate::default()), Arc::new(AtomicUsize::new(0)));
        let count = woken.clone();
        gate.add_waker(move || count.fetch_add(1, Ordering::SeqCst) == 0);
        gate.close(|| {});
        assert_eq!(woken.load(Ordering::SeqCst), 0, "it was closed at once");
        let _held = gate.hold(ONE);
        (0..3).for_each(|_| gate.close(|| {}));
        assert_eq!(woken.load(Ordering::SeqCst), 2, "until it is not needed any more");
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
        let held = gate.hold(ONE);
        close();
        assert_eq!((count(), gate.has_unclosed()), (1, true));
        let allowed = gate.allow(ONE);
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
            let held = other.hold(ONE);
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
