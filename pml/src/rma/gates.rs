//! Memory of peers that this process has mapped, and the gates to it.
//!
//! A gate for each exposure keeps the memory mapped while an operation uses it, and lets a revocation wait for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_base::gate::Gate;
use cableway_btl::Mapping;
use parking_lot::Mutex;

use super::exposure_wire::Ways;
use super::exposures::Reached;
use super::key::Name;
use super::passing::{Accesses, DeviceMemory, Passing};
use super::registry::Span;

/// Exposures of one owner that are mapped at a time. Others go the other ways. Owners number their registrations from 0
/// on and reuse free numbers, so that few of them meet.
const GATES: usize = 64;

/// The gates to one owner's memory, by its registrations' slots. A gate stays once it was made, so that it is found
/// without a lock.
pub(super) struct Gates([OnceLock<Arc<Gate<Mapped>>>; GATES]);

impl Default for Gates {
    fn default() -> Self {
        Gates(std::array::from_fn(|_| OnceLock::new()))
    }
}

impl Gates {
    pub(super) fn of(&self, slot: u32) -> &OnceLock<Arc<Gate<Mapped>>> {
        &self.0[slot as usize % GATES]
    }
}

/// Memory of a peer in this process.
pub(super) struct Mapped {
    pub(super) name: Name,
    pub(super) memory: Mapping,
}

impl Mapped {
    /// Returns the address of a span of exactly this registration.
    #[inline]
    pub(super) fn at(&self, Span { name, offset, len }: &Span) -> Option<*mut u8> {
        let inside = offset.checked_add(*len)? <= self.memory.len() as u64;
        // It fits in an address, because the mapping does.
        (inside && *name == self.name).then(|| self.memory.address().as_ptr().wrapping_add(*offset as usize))
    }
}

/// What streams do with memory of an owner.
#[derive(Default)]
pub(super) struct ByStreams {
    /// For each context.
    pub(super) mapped: Vec<DeviceMemory>,
    pub(super) accesses: Accesses<dyn Passing>,
}

/// How this process reaches memory of an owner.
pub(super) struct Reach {
    pub(super) ways: Ways,
    /// Locked after the exposures.
    pub(super) streams: Mutex<ByStreams>,
    gate: Option<Arc<Gate<Mapped>>>,
    /// Whether the gate may serve another exposure by now.
    over: AtomicBool,
}

impl Reach {
    /// Describes memory that was exposed, and mapped if there is an open gate to it.
    pub(super) fn new(ways: Ways, gate: Option<Arc<Gate<Mapped>>>) -> Self {
        Reach { ways, streams: Mutex::default(), gate, over: AtomicBool::new(false) }
    }
}

impl Reached for Reach {
    fn close(&self) {
        self.streams.lock().accesses.close();
        if let Some(gate) = &self.gate {
            gate.close();
        }
    }

    fn is_over(&self) -> bool {
        // A gate that is over must not be asked again.
        if self.streams.lock().accesses.under_way().is_some() {
            return false;
        }
        let over = self.gate.as_ref().is_none_or(|gate| gate.is_over());
        self.over.fetch_or(over, Ordering::AcqRel);
        over
    }
}

impl Drop for Reach {
    fn drop(&mut self) {
        if !*self.over.get_mut() {
            self.close();
            // If a user is inside, the last one drops the mapping.
            self.is_over();
        }
    }
}
