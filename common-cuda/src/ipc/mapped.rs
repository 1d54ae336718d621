//! The result of reaching for a peer's memory.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use super::Wanted;
use crate::platform::Mapping;

/// Tells whether an allocation of a peer can be reached.
#[derive(Debug)]
pub enum Reach {
    /// It is mapped.
    Mapped(Mapped),
    /// It is not worth a mapping yet, or not there yet: by another protocol this time.
    NotYet,
    /// The same, and its owner is to be asked for this, whose answer [`Imports::supply`](super::Imports::supply) takes.
    Ask(Wanted),
    /// It cannot be mapped.
    Refused,
}

/// A mapping that is open.
pub(super) struct Open {
    pub(super) mapping: Arc<Mapping>,
    /// It was used without a look-up since somebody looked.
    pub(super) used: AtomicBool,
}

impl Open {
    pub(super) fn new(mapping: Arc<Mapping>) -> Arc<Open> {
        Arc::new(Open { mapping, used: AtomicBool::new(false) })
    }
}

/// A mapping in use.
#[derive(Clone)]
pub struct Mapped {
    pub(super) open: Arc<Open>,
}

impl Mapped {
    /// Returns the address of the allocation's byte `offset` for copies by this process's devices.
    pub fn address(&self, offset: u64) -> *mut u8 {
        self.open.mapping.address().wrapping_add(offset as usize)
    }
}

/// A mapping that was used. It may be used again while it is kept.
pub struct WasMapped {
    pub(super) open: Weak<Open>,
}

impl Mapped {
    /// Returns a reference that finds the mapping again without a look-up.
    pub fn remember(&self) -> WasMapped {
        WasMapped { open: Arc::downgrade(&self.open) }
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({:p})", self.open.mapping.address())
    }
}
