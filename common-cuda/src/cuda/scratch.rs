//! Device memory of our own, in the context of a program's buffer.

use std::sync::Arc;

use super::context::Context;
use super::ipc::buffer_id;
use super::status::Failure;
use crate::vendor::VendorScratch;

/// An allocation in a context, freed on request only.
pub(super) struct Memory {
    address: u64,
    /// Drivers before 12.0 tell no context from the next at its address; this tells the memory.
    id: u64,
}

impl Memory {
    /// Allocates, unless the default stream has work to do: an allocation may wait for whatever the device does, and that
    /// may be waiting for a message. For a kernel in a stream that does not wait for that one it did not wait on an H200
    /// (driver 580), where `cuMemFree` did.
    pub(super) fn allocate(context: &Context, len: usize) -> Result<Option<Memory>, Failure> {
        let _scope = context.enter()?;
        let driver = context.driver;
        if context.is_settled(driver)? != Some(true) {
            return Ok(None);
        }
        let mut address = 0;
        // SAFETY: fills in the address.
        unsafe { driver.cuMemAlloc(&raw mut address, len) }?;
        let Some(id) = buffer_id(driver, std::ptr::with_exposed_provenance(address as usize)) else {
            // SAFETY: just allocated, and nobody was told of it.
            unsafe { driver.cuMemFree(address) }?;
            return Ok(None);
        };
        Ok(Some(Memory { address, id }))
    }

    pub(super) fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Whether its context has not gone, which takes memory along.
    pub(super) fn lives(&self, context: &Context) -> bool {
        context.alive() && buffer_id(context.driver, self.address()) == Some(self.id)
    }

    /// Frees it, which may wait for the program's kernels; nothing if it has gone. So it is done only as an engine ends,
    /// when host memory is let go of, too, for which the driver waits as well.
    pub(super) fn free(self, context: &Context) {
        if !self.lives(context) {
            return;
        }
        let Ok(_scope) = context.enter() else { return };
        // SAFETY: our allocation, in the current context, which nobody uses any more.
        if let Err(failure) = unsafe { context.driver.cuMemFree(self.address) } {
            log::debug!("freeing device memory: {}", context.driver.reason(failure));
        }
    }
}

/// An allocation; freed by dropping, unless its context took it along.
pub(super) struct Scratch {
    context: Arc<Context>,
    /// None only while it is dropped.
    memory: Option<Memory>,
}

impl Scratch {
    /// As [`Memory::allocate`].
    pub(super) fn new(context: Arc<Context>, len: usize) -> Result<Option<Scratch>, Failure> {
        let memory = Memory::allocate(&context, len)?;
        Ok(memory.map(|memory| Scratch { context, memory: Some(memory) }))
    }
}

impl VendorScratch for Scratch {
    fn address(&self) -> *mut u8 {
        self.memory.as_ref().map_or(std::ptr::null_mut(), Memory::address)
    }

    fn lives(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.lives(&self.context))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.free(&self.context);
        }
    }
}
