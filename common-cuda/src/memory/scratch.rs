//! Device memory of Cableway in the context of a program's buffer.

use std::sync::Arc;

use crate::context::Context;
use crate::driver::Failure;
use crate::order::DefaultStream;

/// An allocation in a context. Dropping it frees it, unless the context was destroyed.
pub(crate) struct ScratchMemory {
    context: Arc<Context>,
    address: u64,
    /// Drivers before 12.0 do not distinguish a new context at an old address. This id of the memory does.
    id: u64,
}

impl ScratchMemory {
    /// Allocates memory unless the default stream is busy: an allocation may wait for any work of the device, which may
    /// wait for a message. On an H200 (driver 580), an allocation did not wait for a kernel in a stream independent of
    /// the default stream, but `cuMemFree` did.
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

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Returns the driver's id of the allocation.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Checks whether the context still exists. A destroyed context frees its memory.
    pub(crate) fn lives(&self) -> bool {
        self.context.alive() && self.context.driver.buffer_id(self.address) == Some(self.id)
    }
}

impl Drop for ScratchMemory {
    /// May wait for the program's kernels. So it is dropped only when an engine ends, when host memory is released,
    /// too, for which the driver waits as well.
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
