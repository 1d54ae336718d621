//! Where others leave what the thread is to do.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::link::Link;

/// What is left for the thread, and a descriptor that wakes it.
pub(crate) struct Door {
    commands: Mutex<Vec<Arc<Link>>>,
    stop: AtomicBool,
    closing: AtomicBool,
    bell: OwnedFd,
}

impl Door {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Door { commands: Mutex::default(), stop: AtomicBool::new(false), closing: AtomicBool::new(false), bell })
    }

    /// Has a connection made. The link's state is `Connecting` already.
    pub(crate) fn connect(&self, link: &Arc<Link>) {
        self.commands.lock().push(Arc::clone(link));
        self.ring();
    }

    /// Ends attempts to connect, and takes no more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.ring();
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether to close, told once.
    pub(super) fn closes(&self) -> bool {
        self.closing.swap(false, Ordering::AcqRel)
    }

    /// Links to connect, told once.
    pub(super) fn commands(&self) -> Vec<Arc<Link>> {
        std::mem::take(&mut *self.commands.lock())
    }

    /// Readable once something was left here.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(super) fn answer(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    pub(super) fn ring(&self) {
        // It fails only where it has been rung more often than it can count, and then it is loud enough.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}
