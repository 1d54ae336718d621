//! The command queue of the service thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::link::Link;

/// Commands for the service thread, and a descriptor that wakes it.
pub(crate) struct CommandQueue {
    commands: Mutex<Vec<Arc<Link>>>,
    stop: AtomicBool,
    closing: AtomicBool,
    wakeup: OwnedFd,
}

impl CommandQueue {
    pub(super) fn new() -> io::Result<Self> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(CommandQueue {
            commands: Mutex::default(),
            stop: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            wakeup,
        })
    }

    /// Requests a connection. The link's state must already be `Connecting`.
    pub(crate) fn connect(&self, link: &Arc<Link>) {
        self.commands.lock().push(Arc::clone(link));
        self.wake();
    }

    /// Cancels pending connections and refuses new ones.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    /// Stops the thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Takes the close command, if there is one.
    pub(super) fn take_close(&self) -> bool {
        self.closing.swap(false, Ordering::AcqRel)
    }

    /// Takes the links to connect.
    pub(super) fn take_links(&self) -> Vec<Arc<Link>> {
        std::mem::take(&mut *self.commands.lock())
    }

    /// Returns a descriptor that becomes readable when a command is queued.
    pub(super) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    pub(super) fn clear_wakeup(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wakeup, &mut count);
    }

    pub(super) fn wake(&self) {
        // The write fails only if the counter is at its maximum; the descriptor is readable then.
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }
}
