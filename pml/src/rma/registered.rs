//! A registration in its owner's hands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cableway_common_cuda::Location;

use super::exposing::Exposing;
use super::key::RemoteKey;
use super::registry::{Region, Span};
use crate::am::Poster;
use crate::error::Error;

/// Time that the end of a registration waits for accesses of peers if the thread panics or the engine was finalized.
pub(super) const LAST_WAIT: Duration = Duration::from_secs(10);

/// Memory that peers may access by its key until this is dropped. May be used from any thread.
///
/// The drop refuses later accesses and waits for those under way. Peers that access the memory directly are asked to stop,
/// so it also waits until each of them makes progress. It makes progress itself meanwhile, so it must not be called in a
/// handler. If it can not wait any more, because the thread panics or the engine was finalized, and a peer still
/// accesses the memory after 10 s, it aborts the process: the memory must not be freed.
pub struct Registered {
    exposing: Arc<Exposing>,
    poster: Poster,
    region: Region,
    key: RemoteKey,
}

impl Registered {
    pub(super) fn new(exposing: Arc<Exposing>, poster: Poster, region: Region, key: RemoteKey) -> Self {
        Registered { exposing, poster, region, key }
    }

    /// Returns the key, to be sent to those who may access the memory.
    pub fn key(&self) -> &RemoteKey {
        &self.key
    }

    /// Returns where the memory lies.
    pub fn location(&self) -> &Location {
        &self.region.location
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.region.address)
    }

    /// Reads the word of 8 bytes at `offset`. Data of puts whose signal it has seen is visible afterwards.
    ///
    /// # Errors
    /// The registration has ended, the word is not within the memory or is misaligned, or the device driver refused.
    pub fn load(&self, offset: u64) -> Result<u64, Error> {
        self.exposing.owner.load(self.poster.engine().devices(), &Span { name: self.key.name(), offset, len: 8 })
    }

    /// Returns the word of 8 bytes at `offset`, for a later look.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn word(&self, offset: u64) -> Result<RegisteredWord, Error> {
        self.load(offset)?;
        let span = Span { name: self.key.name(), offset, len: 8 };
        Ok(RegisteredWord { exposing: self.exposing.clone(), poster: self.poster.clone(), span })
    }

    /// Ends the registration as the drop does. Later loads fail.
    pub fn end(&self) {
        let engine = self.poster.engine();
        if engine.is_forked() {
            // Peers access the parent's memory, and locks may be held for ever here.
            return;
        }
        let name = &self.key.name();
        self.exposing.owner.close(name, &self.region);
        let remove = || self.exposing.remove(&self.poster, name);
        // Nobody accesses most memory at its end.
        if remove() {
            return;
        }
        let mut removed = false;
        let end = Instant::now() + LAST_WAIT;
        engine.wait_until(|| {
            removed = remove();
            removed || ((std::thread::panicking() || engine.core().check_open().is_err()) && Instant::now() > end)
        });
        if !removed {
            log::error!("aborting: a peer accesses registered memory that this process wants to free");
            std::process::abort();
        }
    }
}

/// A word of 8 bytes in registered memory, which it does not keep registered. May be used from any thread.
pub struct RegisteredWord {
    exposing: Arc<Exposing>,
    poster: Poster,
    span: Span,
}

impl RegisteredWord {
    /// Reads the word, as [`Registered::load`] does.
    ///
    /// # Errors
    /// As there.
    pub fn load(&self) -> Result<u64, Error> {
        self.exposing.owner.load(self.poster.engine().devices(), &self.span)
    }

    /// Writes the word, as a signal of a peer does.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn store(&self, value: u64) -> Result<(), Error> {
        self.exposing.owner.store(self.poster.engine().devices(), &self.span, value)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Registered").field(&self.key).finish()
    }
}
