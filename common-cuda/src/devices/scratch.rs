//! Device memory of our own, for data on its way.

use std::fmt;

use super::Devices;
use crate::error::DeviceError;
use crate::location::Location;
use crate::memory::ScratchMemory;

/// Device memory in the context of a program's buffer; freed by dropping. Peers can be told of it as of the program's.
pub struct Scratch {
    inner: ScratchMemory,
    location: Location,
}

impl Devices {
    /// Allocates `len` bytes in the context of the device memory at `at`. None while the default stream there has work to
    /// do, for which an allocation might wait.
    ///
    /// # Errors
    /// The context is gone, or there is no memory.
    pub fn scratch(&self, at: &Location, len: usize) -> Result<Option<Scratch>, DeviceError> {
        let Some(platform) = self.platform() else { return Ok(None) };
        let Some(inner) = platform.scratch(at, len)? else { return Ok(None) };
        let location = self.classify(inner.address(), len);
        Ok(Some(Scratch { inner, location }))
    }
}

impl Scratch {
    /// The first byte's address, which no CPU may touch.
    pub fn address(&self) -> *mut u8 {
        self.inner.address()
    }

    /// Returns its location as the driver reports it.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Checks whether it still exists. A destroyed context takes its memory along.
    pub fn lives(&self) -> bool {
        self.inner.lives()
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("address", &self.address()).finish_non_exhaustive()
    }
}
