//! Where others leave what the thread is to do.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::link::Link;

/// What is left for the thread, and a descriptor that wakes it.
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

    /// Has a connection made. The link's state is `Connecting` already.
    pub(crate) fn connect(&self, link: &Arc<Link>) {
        self.commands.lock().push(Arc::clone(link));
        self.wake();
    }

    /// Ends attempts to connect, and takes no more.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether to close, told once.
    pub(super) fn take_close(&self) -> bool {
        self.closing.swap(false, Ordering::AcqRel)
    }

    /// Links to connect, told once.
    pub(super) fn take_links(&self) -> Vec<Arc<Link>> {
        std::mem::take(&mut *self.commands.lock())
    }

    /// Readable once something was left here.
    pub(super) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    pub(super) fn clear_wakeup(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wakeup, &mut count);
    }

    pub(super) fn wake(&self) {
        // It fails only where it has been rung more often than it can count, and then it is loud enough.
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }
}
