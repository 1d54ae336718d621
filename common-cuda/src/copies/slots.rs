//! Words in host memory that streams write behind a copy by values, and whether the driver writes values at all.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::context::Context;
use crate::memory::HostWords;

/// Copies by values that a context has under way at most.
const SLOTS: usize = 64;

/// Bytes between the words of two slots: a cache line.
const LINE: usize = 64;

/// The slots of one context for copies by values.
pub(super) struct Slots {
    context: Arc<Context>,
    /// Created for the first copy. `None` if the words cannot be allocated or registered.
    words: OnceLock<Option<Words>>,
    /// True if the driver refuses to write values: to memory without a context, and to memory with a context.
    refused: [AtomicBool; 2],
}

/// A word for each slot.
pub(super) struct Words {
    memory: HostWords,
    free: Mutex<Vec<usize>>,
}

impl Slots {
    pub(super) fn new(context: Arc<Context>) -> Slots {
        Slots { context, words: OnceLock::new(), refused: Default::default() }
    }

    /// Checks whether the driver refuses values for memory of the context of this id, or of no context (0).
    pub(super) fn are_refused(&self, context: u64) -> bool {
        self.refused[usize::from(context != 0)].load(Ordering::Relaxed)
    }

    pub(super) fn refuse(&self, context: u64) {
        self.refused[usize::from(context != 0)].store(true, Ordering::Relaxed);
    }

    /// Returns the words. The first call requires that the context is current.
    #[inline]
    pub(super) fn words(&self) -> Option<&Words> {
        let made = self.words.get_or_init(|| {
            let driver = self.context.driver;
            match HostWords::new(driver, SLOTS * LINE) {
                Ok(memory) => Some(Words { memory, free: Mutex::new((0..SLOTS).collect()) }),
                Err(failure) => {
                    log::debug!("context {}: no words for values: {}", self.context.id, driver.reason(failure));
                    self.refused.iter().for_each(|refused| refused.store(true, Ordering::Relaxed));
                    None
                }
            }
        });
        made.as_ref()
    }
}

impl Words {
    pub(super) fn take(&self) -> Option<usize> {
        self.free.lock().pop()
    }

    pub(super) fn give_back(&self, slot: usize) {
        self.free.lock().push(slot);
    }

    pub(super) fn word(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < SLOTS);
        // SAFETY: an aligned word of the memory, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.memory.address::<u8>().add(slot * LINE).cast()) }
    }

    pub(super) fn device_address(&self, slot: usize) -> u64 {
        self.memory.device() + (slot * LINE) as u64
    }
}

impl Drop for Slots {
    /// No copy is under way.
    fn drop(&mut self) {
        if let Some(Some(words)) = self.words.take()
            && let Ok(_scope) = self.context.enter()
        {
            words.memory.destroy(self.context.driver);
        }
    }
}
