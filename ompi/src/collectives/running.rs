//! Operations under way, and their progress.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_coll::Operation;
use parking_lot::Mutex;

use super::report::report;
use crate::boundary::{Code, shim_host_progress};
use crate::fault::{self, Point};
use crate::waiting::POLLS_PER_HOST_PROGRESS;

unsafe extern "C" {
    fn shim_collective_completed(owner: *mut c_void, code: c_int);
}

/// A non-blocking operation, and its request.
struct Running {
    operation: Operation,
    owner: *mut c_void,
}

// SAFETY: the owner is passed back to the shim only, which accepts it on any thread.
unsafe impl Send for Running {}

/// The operations that no thread polls at present, and the number of all.
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Adds an operation, which the shim's `owner` waits for.
pub(super) fn add(mut operation: Operation, owner: *mut c_void) {
    // Post its first messages at once.
    match polled(&mut operation) {
        None => {
            COUNT.fetch_add(1, Ordering::Release);
            RUNNING.lock().push(Running { operation, owner });
        }
        Some(code) => {
            drop(operation);
            complete(owner, code);
        }
    }
}

/// Polls all operations once. Returns the number that finished.
#[inline]
pub(super) fn progress() -> usize {
    if COUNT.load(Ordering::Acquire) == 0 { 0 } else { poll_all() }
}

fn poll_all() -> usize {
    // A completion may start another operation, so hold no lock meanwhile.
    let Some(mut taken) = RUNNING.try_lock().map(|mut running| std::mem::take(&mut *running)) else { return 0 };
    let mut finished = Vec::new();
    let mut at = 0;
    while at < taken.len() {
        match polled(&mut taken[at].operation) {
            None => at += 1,
            Some(code) => finished.push((taken.remove(at).owner, code)),
        }
    }
    COUNT.fetch_sub(finished.len(), Ordering::Release);
    if !taken.is_empty() {
        let mut running = RUNNING.lock();
        // Operations that began first come first.
        taken.append(&mut running);
        *running = taken;
    }
    let count = finished.len();
    finished.into_iter().for_each(|(owner, code)| complete(owner, code));
    count
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
    // SAFETY: the owner of an operation that has just finished.
    unsafe { shim_collective_completed(owner, code) };
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
        if engine.progress() != 0 || progress() != 0 {
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
