//! Failures and ended peers that other threads report to the thread in progress.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_btl::Error;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::link::Link;

/// Collects failures for progress.
#[derive(Default)]
pub(crate) struct NoticeQueue {
    notices: Mutex<Notices>,
    any: AtomicBool,
    /// A thread sleeps at times; `wakeup` wakes it.
    listening: AtomicBool,
    wakeup: OnceLock<OwnedFd>,
}

#[derive(Default)]
pub(crate) struct Notices {
    /// Links to break off, and why.
    pub(crate) failures: Vec<(Arc<Link>, Error)>,
    /// Links that the peer closed cleanly before its goodbye could use the connection.
    pub(crate) closed: Vec<Arc<Link>>,
    /// Links whose peers, processes of this node, have ended.
    pub(crate) ended: Vec<Arc<Link>>,
    /// The device failed.
    pub(crate) device: Option<String>,
}

impl NoticeQueue {
    pub(crate) fn post(&self, write: impl FnOnce(&mut Notices)) {
        write(&mut self.notices.lock());
        // Either this thread sees the listener, or the listener sees the notice.
        self.any.store(true, Ordering::SeqCst);
        if self.listening.load(Ordering::SeqCst)
            && let Some(wakeup) = self.wakeup.get()
        {
            // The write fails only if the counter is at its maximum; the descriptor is readable then.
            let _ = rustix::io::write(wakeup, &1_u64.to_ne_bytes());
        }
    }

    /// Returns a descriptor that becomes readable with the next notice. None: a notice is pending, or the system has no
    /// descriptor left.
    pub(crate) fn listen(&self) -> Option<BorrowedFd<'_>> {
        let wakeup = match self.wakeup.get() {
            Some(wakeup) => wakeup,
            None => {
                let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
                self.wakeup.get_or_init(|| made)
            }
        };
        let mut count = [0; 8];
        let _ = rustix::io::read(wakeup, &mut count);
        self.listening.store(true, Ordering::SeqCst);
        (!self.any.load(Ordering::SeqCst)).then(|| wakeup.as_fd())
    }

    #[inline]
    pub(crate) fn collect(&self) -> Option<Notices> {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::Acquire) {
            return None;
        }
        Some(std::mem::take(&mut *self.notices.lock()))
    }
}
