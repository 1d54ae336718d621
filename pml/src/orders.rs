//! The order of operations after what their buffers' default streams hold.
//!
//! A copy that waits for a default stream, and a question about one, take the driver a microsecond or more each. So the
//! question is put while there is nothing else to do: of all operations that began before, copies need not wait then.

use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_common_cuda::Location;

use crate::engine::Engine;
use cableway_base::lock::{Lock, Locking};

/// Whose default streams are to be asked about.
pub(crate) struct Orders {
    begun: Lock<Vec<Location>>,
    count: AtomicUsize,
}

impl Orders {
    pub(crate) fn new(locking: Locking) -> Self {
        Orders { begun: Lock::new(locking, Vec::new()), count: AtomicUsize::new(0) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}

impl Engine {
    /// An operation on device memory there has begun.
    pub(crate) fn note_begun(&self, location: &Location) {
        let mut begun = self.orders.begun.lock();
        let same = |other: &Location| (other.context, other.device) == (location.context, location.device);
        if !begun.iter().any(same) {
            begun.push(*location);
            self.orders.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks about them. Those that are busy are asked again.
    #[cold]
    pub(crate) fn look_at_orders(&self) {
        let Some(mut begun) = self.orders.begun.try_lock() else { return };
        // Of one that cannot be asked, copies will wait.
        begun.retain(|location| matches!(self.devices.ask_default_stream(location), Ok(false)));
        self.orders.count.store(begun.len(), Ordering::Relaxed);
    }
}
