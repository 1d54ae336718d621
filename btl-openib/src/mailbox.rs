//! What threads leave for the thread that makes progress: failures, and peers that ended.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cableway_btl::Error;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::link::Link;

/// What may be lost by a failure, and who hears of it.
#[derive(Default)]
pub(crate) struct Mailbox {
    notices: Mutex<Notices>,
    any: AtomicBool,
    /// Somebody sleeps now and then, whom the bell wakes.
    listening: AtomicBool,
    wakeup: OnceLock<OwnedFd>,
}

#[derive(Default)]
pub(crate) struct Notices {
    /// Links that are to be broken off, and why.
    pub(crate) failures: Vec<(Arc<Link>, Error)>,
    /// Links that the peer closed in good order before it could say so on the connection.
    pub(crate) closed: Vec<Arc<Link>>,
    /// Links whose peers, processes of this node, have ended.
    pub(crate) ended: Vec<Arc<Link>>,
    /// The device is of no use any more.
    pub(crate) device: Option<String>,
}

impl Mailbox {
    pub(crate) fn post(&self, write: impl FnOnce(&mut Notices)) {
        write(&mut self.notices.lock());
        // One of the two sees what the other did: this the listener, or the listener the letter.
        self.any.store(true, Ordering::SeqCst);
        if self.listening.load(Ordering::SeqCst)
            && let Some(wakeup) = self.wakeup.get()
        {
            // It fails only where it is loud enough.
            let _ = rustix::io::write(wakeup, &1_u64.to_ne_bytes());
        }
    }

    /// What becomes readable with the next letter. None: there is one already, or the system has no descriptor.
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
