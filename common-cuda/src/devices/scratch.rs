//! Device memory that Cableway allocates for data in transit.

use std::fmt;

use super::Devices;
use crate::error::DeviceError;
use crate::location::Location;
use crate::memory::ScratchMemory;

/// Device memory in the context of a program's buffer. Dropping it frees the memory. Peers can map it like the
/// program's memory.
pub struct Scratch {
    inner: ScratchMemory,
    location: Location,
}

impl Devices {
    /// Allocates `len` bytes in the context of the device memory at `at`. Returns `None` while the default stream is
    /// busy, because an allocation might wait for it.
    ///
    /// # Errors
    /// The context is destroyed, or memory is exhausted.
    pub fn scratch(&self, at: &Location, len: usize) -> Result<Option<Scratch>, DeviceError> {
        let Some(platform) = self.platform_at(at) else { return Ok(None) };
        let queue = platform.queue(at)?;
        let (context, default_stream) = (&queue.workspace.context, &queue.workspace.default_stream);
        let made = ScratchMemory::allocate(context, default_stream, len);
        let refused = |failure| context.driver.error(failure, format!("{len} bytes of scratch memory"));
        let Some(inner) = made.map_err(refused)? else { return Ok(None) };
        if let Some(contexts) = platform.contexts() {
            contexts.note_own(inner.id());
        }
        let location = self.classify(inner.address(), len);
        Ok(Some(Scratch { inner, location }))
    }
}

impl Scratch {
    /// Returns the address of the first byte. The CPU must not access it.
    pub fn address(&self) -> *mut u8 {
        self.inner.address()
    }

    /// Returns its location as the driver reports it.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Checks whether the memory still exists. The end of its context frees it.
    pub fn lives(&self) -> bool {
        self.inner.lives()
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("address", &self.address()).finish_non_exhaustive()
    }
}
