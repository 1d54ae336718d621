//! Statuses of the program that are filled when a message is over.

use std::ffi::c_void;
use std::sync::Arc;

use cableway_pml::StreamMessage;
use parking_lot::Mutex;

use crate::boundary::StatusReport;
use crate::deferred::Owner;

unsafe extern "C" {
    fn shim_stream_status(status: *mut c_void, report: *const StatusReport);
}

/// A status, until it is filled or closed. It is memory of the program and not of Open MPI, so that any thread may fill
/// it.
pub(super) struct Slot(Arc<Mutex<Option<Owner>>>);

impl Slot {
    pub(super) fn new(status: *mut c_void) -> Slot {
        Slot(Arc::new(Mutex::new(Some(Owner::new(status)))))
    }

    /// Has the status filled once a message is over, before the streams that wait for it go on.
    pub(super) fn fill_after(&self, message: &StreamMessage) {
        let slot = self.0.clone();
        message.on_arrival(move |result| {
            // Locked, so that it is not filled any more when `close` returns.
            let mut slot = slot.lock();
            if let Some(status) = slot.take() {
                let report = StatusReport::quietly(result);
                // SAFETY: the program keeps the status until the message is over, or until the slot is closed.
                unsafe { shim_stream_status(status.get(), &raw const report) };
            }
        });
    }

    /// Leaves the status as it is from now on.
    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }
}
