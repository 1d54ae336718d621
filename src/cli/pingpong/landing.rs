//! Handlers of active messages in windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway::World;
use parking_lot::Mutex;

use super::memory::Memory;
use super::room::Room;
use crate::cli::Failure;

/// The id of the first thread's handler; each thread has the next one.
const FIRST: u32 = 100;

/// A number in cache lines of its own. Two lines, because processors fetch pairs of lines.
#[repr(align(128))]
struct Padded(AtomicU64);

/// One thread's handler, and how many messages have landed by it.
pub(crate) struct Landing<'a> {
    pub(super) world: &'a World,
    /// The id of the handler.
    pub(super) id: u32,
    landed: Arc<Padded>,
    failure: Arc<Mutex<Option<cableway::Error>>>,
    /// The number of messages of earlier measurements.
    pub(super) awaited: u64,
}

impl<'a> Landing<'a> {
    /// Registers the handler of a thread, whose messages land in `memory`.
    pub(crate) fn new(world: &'a World, memory: Memory, thread: u32) -> Result<Self, Failure> {
        let (memory, landed) = (Arc::new(memory), Arc::new(Padded(AtomicU64::new(0))));
        let failure = Arc::<Mutex<Option<cableway::Error>>>::default();
        let landing =
            Landing { world, id: FIRST + thread, landed: landed.clone(), failure: failure.clone(), awaited: 0 };
        world.am_handler(landing.id, move |message| {
            if let Some(data) = message.data()
                // SAFETY: handlers of a world run one at a time, and nobody reads the memory.
                && unsafe { memory.land(data) }
            {
                landed.0.fetch_add(1, Ordering::Release);
                return;
            }
            // SAFETY: nobody reads what messages leave there, and no device memory was copied before.
            let room = unsafe { Room::new(memory.clone(), message.len()) };
            let (landed, failure) = (landed.clone(), failure.clone());
            message.receive(room, move |_, result| {
                if let Err(error) = result {
                    *failure.lock() = Some(error);
                }
                landed.0.fetch_add(1, Ordering::Release);
            });
        })?;
        Ok(landing)
    }

    /// Waits until `more` messages have landed, besides those of earlier measurements.
    pub(super) fn wait(&self, more: u64) -> Result<(), Failure> {
        self.world.progress_until(|| self.landed.0.load(Ordering::Acquire) >= self.awaited + more);
        self.failure.lock().take().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.world.remove_am_handler(self.id);
    }
}
