//! Device memory of our own, in the context of a program's buffer.

use std::sync::Arc;

use super::context::Context;
use super::ipc::buffer_id;
use super::status::Failure;
use crate::vendor::VendorScratch;

/// An allocation; freed by dropping, unless its context took it along.
pub(super) struct Scratch {
    context: Arc<Context>,
    address: u64,
    /// Drivers before 12.0 tell no context from the next at its address; this tells the memory.
    id: u64,
}

impl Scratch {
    /// Allocates, unless the default stream has work to do: an allocation may wait for whatever the device does, and that
    /// may be waiting for a message.
    pub(super) fn new(context: Arc<Context>, len: usize) -> Result<Option<Scratch>, Failure> {
        let scope = context.enter()?;
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
        drop(scope);
        Ok(Some(Scratch { context, address, id }))
    }
}

impl VendorScratch for Scratch {
    fn address(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    fn lives(&self) -> bool {
        self.context.alive() && buffer_id(self.context.driver, self.address()) == Some(self.id)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.lives() {
            return;
        }
        let Ok(_scope) = self.context.enter() else { return };
        // SAFETY: our allocation, in the current context, which nobody uses any more.
        if let Err(failure) = unsafe { self.context.driver.cuMemFree(self.address) } {
            log::debug!("freeing scratch memory: {}", self.context.driver.reason(failure));
        }
    }
}
