//! Lists of blocks, copied to the devices whose kernels read them.
//!
//! A list is made in host memory, and serves from there. But a kernel takes eight bytes of it for every block: 16 MiB in
//! blocks of 8 bytes, read and packed on an H200, took 350 us, as long as the list takes over PCIe, and the data 50. So
//! what is used again is copied to the device, while the kernels go on reading it where it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::context::Context;
use super::copy::{Operation, Start};
use super::scratch::Memory;
use super::status::Failure;
use crate::copy::{Completion, Direction};
use crate::vendor::VendorBatch;

/// Lists are rounded up to powers of two from this on, so that one's memory serves another.
const SMALLEST: usize = 4096;

/// A context's device memory for lists, as far as none has it.
#[derive(Default)]
pub(super) struct ListMemory {
    /// By size. What a list leaves is kept: to free it might wait for whatever the device does.
    kept: Mutex<Vec<(usize, Memory)>>,
    /// Bytes that were allocated.
    allocated: AtomicUsize,
}

impl ListMemory {
    /// Memory of that size; none while there is no room, or while the default stream has work to do, for which an
    /// allocation might wait.
    fn take(&self, context: &Context, size: usize) -> Result<Option<Memory>, Failure> {
        let mut kept = self.kept.lock();
        if let Some(index) = kept.iter().position(|(len, _)| *len == size) {
            return Ok(Some(kept.swap_remove(index).1));
        }
        let room = context.settings.list_memory.saturating_sub(self.allocated.load(Ordering::Relaxed));
        if size > room {
            return Ok(None);
        }
        let memory = Memory::allocate(context, size)?;
        if memory.is_some() {
            self.allocated.fetch_add(size, Ordering::Relaxed);
        }
        Ok(memory)
    }

    fn give_back(&self, size: usize, memory: Memory) {
        self.kept.lock().push((size, memory));
    }

    /// Frees what no list has. The context is current.
    pub(super) fn destroy(&self, context: &Context) {
        for (_, memory) in self.kept.lock().drain(..) {
            memory.free(context);
        }
    }
}

/// A list's copies in device memory.
#[derive(Default)]
pub(crate) struct Copies {
    /// How often kernels were given the list where it is.
    uses: AtomicU32,
    made: Mutex<Vec<OnDevice>>,
}

/// One of them.
struct OnDevice {
    /// First, so that it is waited for before the memory is another list's.
    upload: Completion,
    context: Arc<Context>,
    /// None only while this is dropped.
    memory: Option<Memory>,
    size: usize,
}

impl Copies {
    /// Where kernels in a context read the list of `len` bytes at `entries`, other than where it is. The copy is made when
    /// it is used again, and if it cannot be then, later: each time it was used twice as often.
    ///
    /// The list stays as it is, and there, as long as this does.
    pub(super) fn address(&self, context: &Arc<Context>, entries: *mut u8, len: usize) -> Option<u64> {
        let mut made = self.made.lock();
        if let Some(index) = made.iter().position(|copy| Arc::ptr_eq(&copy.context, context)) {
            match made[index].look() {
                Some(there) => return there,
                None => drop(made.swap_remove(index)),
            }
        }
        let uses = self.uses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if uses < 2 || !uses.is_power_of_two() {
            return None;
        }
        match OnDevice::make(context, entries, len) {
            Ok(copy) => made.extend(copy),
            Err(failure) => {
                log::debug!("context {}: a list stays in host memory: {}", context.id, context.driver.reason(failure));
            }
        }
        None
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").field("made", &self.made.lock().len()).finish()
    }
}

impl OnDevice {
    /// Begins to copy.
    fn make(context: &Arc<Context>, entries: *mut u8, len: usize) -> Result<Option<OnDevice>, Failure> {
        let size = len.max(SMALLEST).next_power_of_two();
        let Some(memory) = context.lists.take(context, size)? else { return Ok(None) };
        let start = Start { direction: Direction::HostToDevice, first: false, ordered: false };
        let mut upload = Operation::begin(context.clone(), start);
        // SAFETY: the list stays as it is longer than this copy of it, which is waited for; the memory is its own.
        unsafe { upload.copy(memory.address(), entries, len) };
        upload.page_locked();
        match upload.finish() {
            Ok(upload) => {
                let upload = Completion { inner: upload };
                Ok(Some(OnDevice { upload, context: context.clone(), memory: Some(memory), size }))
            }
            Err(error) => {
                log::debug!("context {}: a list stays in host memory: {error}", context.id);
                context.lists.give_back(size, memory);
                Ok(None)
            }
        }
    }

    /// Its address once it is there; none if it is of no use any more.
    fn look(&mut self) -> Option<Option<u64>> {
        let memory = self.memory.as_ref().filter(|memory| memory.lives(&self.context))?;
        let there = self.upload.poll().ok()?;
        Some(there.then(|| memory.address() as u64))
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // Dropped here, so that it is over before the memory is given away.
        self.upload = Completion::DONE;
        if let Some(memory) = self.memory.take().filter(|memory| memory.lives(&self.context)) {
            self.context.lists.give_back(self.size, memory);
        }
    }
}
