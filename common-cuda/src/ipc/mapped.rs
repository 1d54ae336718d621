//! The result of an attempt to access a peer's memory.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use super::DescriptorRequest;
use crate::platform::Mapping;

/// Tells whether an allocation of a peer is mapped.
#[derive(Debug)]
pub enum Reach {
    /// It is mapped.
    Mapped(Mapped),
    /// It is not mapped yet, or does not pay yet. Use another protocol this time.
    NotYet,
    /// As `NotYet`. Send this request to the owner, and pass the answer to [`Imports::supply`](super::Imports::supply).
    NeedsDescriptor(DescriptorRequest),
    /// It cannot be mapped.
    Refused,
}

/// An open mapping.
pub(super) struct OpenMapping {
    pub(super) mapping: Arc<Mapping>,
    /// True if it was used without a look-up since the last check.
    pub(super) used: AtomicBool,
}

impl OpenMapping {
    pub(super) fn new(mapping: Arc<Mapping>) -> Arc<OpenMapping> {
        Arc::new(OpenMapping { mapping, used: AtomicBool::new(false) })
    }
}

/// A mapping in use.
#[derive(Clone)]
pub struct Mapped {
    pub(super) open: Arc<OpenMapping>,
}

impl Mapped {
    /// Returns the address of the allocation's byte `offset` for copies by this process's devices.
    pub fn address(&self, offset: u64) -> *mut u8 {
        self.open.mapping.address().wrapping_add(offset as usize)
    }
}

/// A reference to a mapping that was used. It finds the mapping again while it is open.
pub struct WeakMapping {
    pub(super) open: Weak<OpenMapping>,
}

impl Mapped {
    /// Returns a reference that finds the mapping again without a look-up.
    pub fn remember(&self) -> WeakMapping {
        WeakMapping { open: Arc::downgrade(&self.open) }
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({:p})", self.open.mapping.address())
    }
}
