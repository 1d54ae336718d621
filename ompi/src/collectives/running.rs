//! Operations under way, and their progress.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cableway_coll::Operation;
use cableway_pml::Task;
use parking_lot::Mutex;

use super::report::report;
use crate::boundary::{Code, shim_host_progress};
use crate::deferred::{self, Owner};
use crate::fault::{self, Point};
use crate::waiting::POLLS_PER_HOST_PROGRESS;

unsafe extern "C" {
    fn shim_collective_completed(owner: *mut c_void, code: c_int);
}

/// A non-blocking operation, and its request. The engine polls it as one of its tasks.
struct Running {
    operation: Mutex<Operation>,
    owner: *mut c_void,
}

// SAFETY: the owner is passed back to the shim only, which accepts it on any thread.
unsafe impl Send for Running {}
// SAFETY: as above.
unsafe impl Sync for Running {}

impl Task for Running {
    fn poll(&self) -> bool {
        let Some(code) = polled(&mut self.operation.lock()) else { return false };
        complete(self.owner, code);
        true
    }
}

/// Adds an operation, which the shim's `owner` waits for.
pub(super) fn add(operation: Operation, owner: *mut c_void) {
    let engine = operation.engine().clone();
    let running = Running { operation: Mutex::new(operation), owner };
    // The first messages leave at once.
    if !running.poll() {
        engine.add_task(Arc::new(running));
    }
}

/// Polls an operation. Returns the code of one that has finished.
fn polled(operation: &mut Operation) -> Option<c_int> {
    match operation.poll() {
        Ok(false) => None,
        Ok(true) => Some(Code::Ok as c_int),
        Err(error) => Some(report(&error)),
    }
}

fn complete(owner: *mut c_void, code: c_int) {
    let owner = Owner::new(owner);
    // SAFETY: the owner of an operation that has finished.
    deferred::in_program(move || unsafe { shim_collective_completed(owner.get(), code) });
}

/// Waits for an operation, and returns its code.
pub(super) fn wait(mut operation: Operation) -> c_int {
    let engine = operation.engine().clone();
    let mut idle: u32 = 0;
    loop {
        if let Some(code) = polled(&mut operation) {
            return code;
        }
        fault::point(Point::Wait);
        if engine.progress() != 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle.is_multiple_of(POLLS_PER_HOST_PROGRESS) {
            engine.waited(u64::from(idle));
            // SAFETY: Open MPI is initialized while it calls this component.
            unsafe { shim_host_progress() };
            std::thread::yield_now();
        }
    }
}
