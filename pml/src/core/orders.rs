//! Default streams that are asked whether they are idle while the engine has nothing else to do.
//!
//! Nobody but the program may touch a buffer before its default stream is idle. To ask the driver takes 1.4 us. Copies for
//! operations that began before an answer of "idle" need not wait for the stream. An own copy can wait by an event instead,
//! for 0.4 us (H200, driver 580); where such a copy comes next, the question would only delay it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cableway_common_cuda::{Devices, Location};

use cableway_base::lock::{Lock, Locking};

/// Turns without any event that a question waits for which may turn out not to be needed: two or three microseconds, in
/// which a peer of the same node that is about to send has sent.
const HOLD: usize = 32;

/// Whose default streams are to be asked about.
pub(crate) struct Orders {
    begun: Lock<Vec<Begun>>,
    count: AtomicUsize,
    /// So many turns more are spent before the question; 0 where the answer is needed.
    held: AtomicUsize,
    /// The message that came last for a device's buffer brought its data, which our own copy moves there.
    brought: AtomicBool,
}

struct Begun {
    at: Location,
    /// A message waits for the answer, or will.
    needed: bool,
}

impl Orders {
    pub(crate) fn new(locking: Locking) -> Self {
        Orders {
            begun: Lock::new(locking, Vec::new()),
            count: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            brought: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// A message for a device's buffer came with its data, or without. If with it, those that were posted besides are
    /// expected to get theirs so, too, and nobody needs to ask for them.
    pub(crate) fn note_message(&self, with_data: bool) {
        self.brought.store(with_data, Ordering::Relaxed);
        if with_data && !self.is_empty() {
            let mut begun = self.begun.lock();
            begun.retain(|begun| begun.needed);
            self.count.store(begun.len(), Ordering::Relaxed);
        }
    }

    /// A receive into device memory there has been posted: its message may be one that a peer is to store.
    pub(crate) fn note_posted(&self, location: &Location) {
        let expected = self.brought.load(Ordering::Relaxed);
        self.note_begun(location, false, if expected { HOLD } else { 0 });
    }

    /// A message in device memory there has been announced: the answer to it needs the stream idle.
    pub(crate) fn note_announced(&self, location: &Location) {
        self.note_begun(location, true, 0);
    }

    fn note_begun(&self, location: &Location, needed: bool, hold: usize) {
        let mut begun = self.begun.lock();
        // What is wanted at once stays so.
        if hold == 0 || begun.is_empty() || self.held.load(Ordering::Relaxed) != 0 {
            self.held.store(hold, Ordering::Relaxed);
        }
        let same = |other: &&mut Begun| (other.at.context, other.at.device) == (location.context, location.device);
        match begun.iter_mut().find(same) {
            Some(known) => known.needed |= needed,
            None => begun.push(Begun { at: *location, needed }),
        }
        self.count.store(begun.len(), Ordering::Relaxed);
    }

    /// Asks about them. Those that are busy are asked again.
    #[cold]
    pub(crate) fn ask(&self, devices: &Devices) {
        let held = self.held.load(Ordering::Relaxed);
        if held != 0 {
            // Another thread's turn may be lost, and is no matter.
            self.held.store(held - 1, Ordering::Relaxed);
            return;
        }
        let Some(mut begun) = self.begun.try_lock() else { return };
        // Of one that cannot be asked, copies will wait.
        begun.retain(|begun| matches!(devices.ask_default_stream(&begun.at), Ok(false)));
        self.count.store(begun.len(), Ordering::Relaxed);
    }
}
