//! The part of a rank's memory that one active message takes.

use std::borrow::Borrow;
use std::ffi::c_void;

use cableway::{DeviceMemory, DeviceMemoryMut};

use super::memory::Memory;

/// The beginning of memory that it owns, or shares.
pub(super) struct Room<M> {
    memory: M,
    len: usize,
}

impl<M: Borrow<Memory>> Room<M> {
    /// Takes room for a message of so many bytes, at most all of the memory.
    ///
    /// # Safety
    /// As long as the value lives, nobody reads the memory whose content matters, or writes to it but such messages. Copies of
    /// it made before were synchronous calls.
    pub(super) unsafe fn new(memory: M, bytes: u64) -> Self {
        let len = memory.borrow().whole().1.min(usize::try_from(bytes).unwrap_or(usize::MAX));
        Room { memory, len }
    }

    /// Returns the memory.
    pub(super) fn into_memory(self) -> M {
        self.memory
    }
}

// SAFETY: an allocation that outlives the value, because `M` owns it or shares it, and the promise of `new`.
unsafe impl<M: Borrow<Memory>> DeviceMemory for Room<M> {
    type Item = u8;

    fn address(&self) -> *mut c_void {
        self.memory.borrow().whole().0.cast()
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: any bytes are valid there, and the promise of `new`.
unsafe impl<M: Borrow<Memory>> DeviceMemoryMut for Room<M> {}
