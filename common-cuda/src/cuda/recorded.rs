//! What of a stream is known to be done.
//!
//! To ask about an event that is done takes the driver 1.25 us, about one that is not 0.1 us (H200, driver 580). Work in
//! a stream ends in its order: so the answer about one event serves all that were recorded in its stream before.

use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::{CUevent, CUstream};
use parking_lot::Mutex;

use super::driver::Driver;
use super::status::Failure;

/// The events that were recorded in one stream, by their numbers from 1 on.
#[derive(Default)]
pub(super) struct Recorded {
    last: Mutex<u64>,
    /// It and all before it are done.
    done: AtomicU64,
}

impl Recorded {
    /// Records an event in the stream, and answers its number. The context is current.
    pub(super) fn record(&self, driver: &Driver, event: CUevent, stream: CUstream) -> Result<u64, Failure> {
        // Held until it is recorded: in the stream, too, events come in the order of their numbers.
        let mut last = self.last.lock();
        // SAFETY: event and stream are of the current context.
        unsafe { driver.cuEventRecord(event, stream) }?;
        *last += 1;
        Ok(*last)
    }

    /// Whether the event of this number is known to be done.
    pub(super) fn is_done(&self, number: u64) -> bool {
        self.done.load(Ordering::Acquire) >= number
    }

    /// The driver says that it is.
    pub(super) fn found_done(&self, number: u64) {
        self.done.fetch_max(number, Ordering::AcqRel);
    }
}
