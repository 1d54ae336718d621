//! Active messages between two ranks. The handler has them land in memory of the kind that is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cableway::{Rank, RawBuffer, World};
use parking_lot::Mutex;

use super::memory::{Fault, Memory};
use super::room::Room;
use crate::cli::Failure;

const ID: u32 = 0;

/// What the handler and this rank's loop share.
struct Shared {
    /// `None` while a message lands.
    inbox: Mutex<Option<Memory>>,
    failure: Mutex<Option<cableway::Error>>,
    failed: AtomicBool,
    landed: AtomicU64,
}

/// This rank's side: its handler, and the messages that it waits for.
pub(crate) struct Active<'a> {
    world: &'a World,
    shared: Arc<Shared>,
    awaited: u64,
}

impl<'a> Active<'a> {
    /// Registers the handler.
    pub(crate) fn new(world: &'a World, memory: Memory) -> Result<Self, Failure> {
        let (inbox, landed) = (Mutex::new(Some(memory)), AtomicU64::new(0));
        let (failure, failed) = (Mutex::new(None), AtomicBool::new(false));
        let shared = Arc::new(Shared { inbox, failure, failed, landed });
        let handled = shared.clone();
        world.am_handler(ID, move |message| {
            let mut place = handled.inbox.lock();
            if let (Some(inbox), Some(data)) = (&*place, message.data())
                // SAFETY: this rank's loop accesses the memory between messages only.
                && unsafe { inbox.land(data) }
            {
                handled.landed.store(handled.landed.load(Ordering::Relaxed) + 1, Ordering::Release);
                return;
            }
            // Each rank waits for the other's message before it posts the next one.
            let Some(inbox) = place.take() else { return };
            drop(place);
            // SAFETY: one allocation that the room owns. Its driver copies are synchronous calls, and nobody else has its
            // address.
            let room = unsafe { Room::new(inbox, message.len()) };
            let shared = handled.clone();
            message.receive(room, move |room, result| {
                *shared.inbox.lock() = Some(room.into_memory());
                if let Err(error) = result {
                    *shared.failure.lock() = Some(error);
                    shared.failed.store(true, Ordering::Relaxed);
                }
                shared.landed.fetch_add(1, Ordering::Release);
            });
        })?;
        Ok(Active { world, shared, awaited: 0 })
    }

    /// Posts a message, and waits for the peer's.
    pub(crate) fn ping(&mut self, message: &RawBuffer<'_>, peer: Rank) -> Result<(), Failure> {
        self.world.communicator().scope(|scope| {
            let posted = scope.post_am(message, peer, ID, &[])?;
            self.pong()?;
            posted.wait()?;
            Ok(())
        })
    }

    /// Waits until a message of the peer has landed.
    pub(crate) fn pong(&mut self) -> Result<(), Failure> {
        self.awaited += 1;
        self.world.progress_until(|| self.shared.landed.load(Ordering::Acquire) >= self.awaited);
        if !self.shared.failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.shared.failure.lock().take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Posts a message.
    pub(crate) fn post(&self, message: &RawBuffer<'_>, peer: Rank) -> Result<(), Failure> {
        self.world.communicator().scope(|scope| scope.post_am(message, peer, ID, &[])?.wait())?;
        Ok(())
    }

    /// Compares the last message with the one that is expected.
    pub(crate) fn verify(&self, size: u64, number: u64) -> Result<Option<Fault>, Failure> {
        match &mut *self.shared.inbox.lock() {
            Some(inbox) => Ok(inbox.verify(1, size, number)?.map(|(_, fault)| fault)),
            None => Err(Failure::failed(1, "a message arrived that was not its turn")),
        }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.world.remove_am_handler(ID);
    }
}
