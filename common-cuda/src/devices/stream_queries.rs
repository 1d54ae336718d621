//! Asks default streams whether they are idle while the engine has nothing else to do.
//!
//! The engine must not touch a buffer before the default stream's work on it is done. The question costs 1.4 us. Copies
//! for operations that began before an answer of "idle" need not wait for the stream. The engine's own copy can wait by
//! an event instead, for 0.4 us (H200, driver 580). Where such a copy comes next, the question would only delay it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cableway_base::lock::{Lock, Locking};

use super::Devices;
use crate::location::Location;

/// Idle turns before a question that may turn out to be unnecessary. They take two or three microseconds, in which a
/// peer of the same node that is about to send has sent.
const HOLD: usize = 32;

/// The contexts whose default streams are to be asked.
pub struct StreamQueries {
    begun: Lock<Vec<Begun>>,
    count: AtomicUsize,
    /// Idle turns left before the question; 0 where the answer is needed now.
    held: AtomicUsize,
    /// Whether the last message for device memory was eager, so that the engine's own copy moves it.
    brought: AtomicBool,
}

struct Begun {
    at: Location,
    /// A message needs the answer, or will.
    needed: bool,
}

impl StreamQueries {
    /// Creates the list without streams.
    pub fn new(locking: Locking) -> Self {
        StreamQueries {
            begun: Lock::new(locking, Vec::new()),
            count: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            brought: AtomicBool::new(false),
        }
    }

    /// Checks whether no stream is to be asked.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Notes that a message for device memory came, eager or not. After an eager one, the other posted receives are
    /// expected to get eager messages too, which need no question.
    pub fn note_message(&self, with_data: bool) {
        self.brought.store(with_data, Ordering::Relaxed);
        if with_data && !self.is_empty() {
            let mut begun = self.begun.lock();
            begun.retain(|begun| begun.needed);
            self.count.store(begun.len(), Ordering::Relaxed);
        }
    }

    /// Notes a posted receive into device memory. The peer may store its message.
    pub fn note_posted(&self, location: &Location) {
        let expected = self.brought.load(Ordering::Relaxed);
        self.note_begun(location, false, if expected { HOLD } else { 0 });
    }

    /// Notes an announced message in device memory. The answer to it needs an idle stream.
    pub fn note_announced(&self, location: &Location) {
        self.note_begun(location, true, 0);
    }

    fn note_begun(&self, location: &Location, needed: bool, hold: usize) {
        let mut begun = self.begun.lock();
        // An urgent question stays urgent.
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

    /// Asks the noted streams. Busy ones are asked again later.
    #[cold]
    pub fn ask(&self, devices: &Devices) {
        let held = self.held.load(Ordering::Relaxed);
        if held != 0 {
            // Another thread's turn may be lost, which is harmless.
            self.held.store(held - 1, Ordering::Relaxed);
            return;
        }
        let Some(mut begun) = self.begun.try_lock() else { return };
        // If a stream cannot be asked, copies wait for it.
        begun.retain(|begun| matches!(devices.ask_default_stream(&begun.at), Ok(false)));
        self.count.store(begun.len(), Ordering::Relaxed);
    }
}
