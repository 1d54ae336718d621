//! Device memory of our own, in the context of a program's buffer.

use std::sync::Arc;

use crate::context::Context;
use crate::driver::Failure;
use crate::order::DefaultStream;

/// An allocation in a context; freed by dropping, unless its context took it along.
pub(crate) struct ScratchMemory {
    context: Arc<Context>,
    address: u64,
    /// Drivers before 12.0 tell no context from the next at its address; this tells the memory.
    id: u64,
}

impl ScratchMemory {
    /// Allocates, unless the default stream has work to do: an allocation may wait for whatever the device does, and that
    /// may be waiting for a message. For a kernel in a stream that does not wait for that one it did not wait on an H200
    /// (driver 580), where `cuMemFree` did.
    pub(crate) fn allocate(
        context: &Arc<Context>,
        default_stream: &DefaultStream,
        len: usize,
    ) -> Result<Option<ScratchMemory>, Failure> {
        let _scope = context.enter()?;
        let driver = context.driver;
        if default_stream.is_idle()? != Some(true) {
            return Ok(None);
        }
        let address = driver.allocate(len)?;
        match driver.buffer_id(address) {
            Some(id) => Ok(Some(ScratchMemory { context: context.clone(), address, id })),
            None => {
                // SAFETY: just allocated, and nobody was told of it.
                unsafe { driver.free(address) }?;
                Ok(None)
            }
        }
    }

    /// The first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Checks whether its context still exists. A destroyed context takes its memory along.
    pub(crate) fn lives(&self) -> bool {
        self.context.alive() && self.context.driver.buffer_id(self.address) == Some(self.id)
    }
}

impl Drop for ScratchMemory {
    /// May wait for the program's kernels. So it is dropped only as an engine ends, when host memory is let go of, too,
    /// for which the driver waits as well.
    fn drop(&mut self) {
        if !self.lives() {
            return;
        }
        let Ok(_scope) = self.context.enter() else { return };
        // SAFETY: our allocation, in the current context, which nobody uses any more.
        if let Err(failure) = unsafe { self.context.driver.free(self.address) } {
            log::debug!("freeing device memory: {}", self.context.driver.reason(failure));
        }
    }
}
