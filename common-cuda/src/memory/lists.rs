//! Lists of blocks, copied to the devices whose kernels read them.
//!
//! A list is made in host memory, where kernels can read it. But a kernel reads eight bytes of it for every block: on
//! an H200, reading and packing 16 MiB in blocks of 8 bytes took 350 us. That is the time of the list on PCIe; the data
//! takes 50 us. So a list that is used again is copied to the device, while kernels continue to read the host copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::arena::{Arena, Part};
use crate::context::{Context, Scope};
use crate::driver::{Event, Failure, Priority, Stream};
use crate::order::{DefaultStream, destroy_event};

/// A context's device memory for lists, and the stream that copies them there.
pub(crate) struct ListMemory {
    context: Arc<Context>,
    default_stream: Arc<DefaultStream>,
    /// The limit in bytes.
    limit: usize,
    /// `None` until its first use.
    arena: Mutex<Option<Arena>>,
    uploads: Mutex<Uploads>,
}

/// The stream never waits for the program's work, so dropping a list can wait for its copy.
#[derive(Default)]
struct Uploads {
    stream: Option<Stream>,
    /// Unused events.
    events: Vec<Event>,
}

impl ListMemory {
    pub(crate) fn new(context: Arc<Context>, default_stream: Arc<DefaultStream>, limit: usize) -> ListMemory {
        ListMemory { context, default_stream, limit, arena: Mutex::default(), uploads: Mutex::default() }
    }

    /// Takes this many bytes. Returns them with their address. Returns `None` if there is no room, or while the default
    /// stream is busy: that would delay the mapping of memory. The context is current.
    fn take(&self, len: usize) -> Result<Option<(Part, u64)>, Failure> {
        if self.limit == 0 || self.default_stream.is_idle()? != Some(true) {
            return Ok(None);
        }
        let mut arena = self.arena.lock();
        let arena = match &mut *arena {
            Some(arena) => arena,
            none => none.insert(Arena::reserve(self.context.driver, self.limit)?),
        };
        Ok(arena.take(len)?.map(|part| (part.clone(), arena.address(&part))))
    }

    fn give_back(&self, part: Part) {
        if let Some(arena) = &mut *self.arena.lock() {
            arena.give_back(part);
        }
    }

    fn lives(&self) -> bool {
        self.arena.lock().as_ref().is_some_and(Arena::lives)
    }

    /// Begins to copy. Returns the event that follows the copy. The context is current.
    ///
    /// # Safety
    /// Both ranges stay unchanged until the event is done.
    unsafe fn upload(&self, to: *mut u8, from: *const u8, len: usize) -> Result<Event, Failure> {
        let driver = self.context.driver;
        let mut uploads = self.uploads.lock();
        let Uploads { stream, events } = &mut *uploads;
        let stream = match stream {
            Some(stream) => stream,
            none => none.insert(driver.new_stream(Priority::Normal)?),
        };
        let event = match events.pop() {
            Some(event) => event,
            None => driver.new_event()?,
        };
        // SAFETY: the caller's promise.
        let begun = unsafe { driver.copy(to, from, len, stream) }.and_then(|()| {
            // A failure here leaves the copy under way, and its memory is about to be reused.
            driver.record(&event, stream).inspect_err(|_| {
                let _ = driver.synchronise(stream);
            })
        });
        match begun {
            Ok(()) => Ok(event),
            Err(failure) => {
                events.push(event);
                Err(failure)
            }
        }
    }
}

impl Drop for ListMemory {
    /// No list exists any more: each list in device memory holds a reference to this.
    fn drop(&mut self) {
        let driver = self.context.driver;
        // The arena's memory belongs to the device, not to the context.
        if let Some(arena) = self.arena.get_mut().take() {
            let _scope = Scope::without_context(driver);
            // SAFETY: no part is in use without a list.
            unsafe { arena.unmap() };
        }
        let Uploads { stream, events } = std::mem::take(self.uploads.get_mut());
        let Ok(_scope) = self.context.enter() else { return };
        for event in events {
            destroy_event(&self.context, event);
        }
        if let Some(Err(failure)) = stream.map(|stream| driver.destroy_stream(stream)) {
            log::debug!("destroying a stream: {}", driver.reason(failure));
        }
    }
}

/// A list's copies in device memory.
#[derive(Default)]
pub(crate) struct Copies {
    /// The number of kernels that read the list in host memory.
    uses: AtomicU32,
    made: Mutex<Vec<OnDevice>>,
}

/// A copy of the list on one device.
struct OnDevice {
    memory: Arc<ListMemory>,
    /// The event of the copy; `None` once it is done.
    upload: Option<Event>,
    part: Part,
    address: u64,
}

impl Copies {
    /// Returns the device address of a copy of the list of `len` bytes at `entries`, if there is one. The second use of
    /// the list makes the copy. After a failure later uses try again, each time after twice as many uses.
    ///
    /// The list does not change or move during the life of `self`.
    pub(crate) fn address(&self, memory: &Arc<ListMemory>, entries: *mut u8, len: usize) -> Option<u64> {
        let mut made = self.made.lock();
        made.retain(|copy| copy.memory.context.alive());
        if let Some(index) = made.iter().position(|copy| Arc::ptr_eq(&copy.memory, memory)) {
            match made[index].look() {
                Some(there) => return there,
                None => drop(made.swap_remove(index)),
            }
        }
        let uses = self.uses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if uses < 2 || !uses.is_power_of_two() {
            return None;
        }
        match OnDevice::make(memory, entries, len) {
            Ok(copy) => made.extend(copy),
            Err(failure) => {
                let Context { id, driver, .. } = &*memory.context;
                log::debug!("context {id}: a list stays in host memory: {}", driver.reason(failure));
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
    fn make(memory: &Arc<ListMemory>, entries: *mut u8, len: usize) -> Result<Option<OnDevice>, Failure> {
        let _scope = memory.context.enter()?;
        let Some((part, address)) = memory.take(len)? else { return Ok(None) };
        let mut copy = OnDevice { memory: memory.clone(), upload: None, part, address };
        let to = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the list stays as it is longer than this copy of it, which is waited for; the memory is its own.
        copy.upload = Some(unsafe { memory.upload(to, entries, len) }?);
        Ok(Some(copy))
    }

    /// Returns the address once the copy is done. The outer `None` means that the copy failed.
    fn look(&mut self) -> Option<Option<u64>> {
        if !self.memory.context.alive() || !self.memory.lives() {
            return None;
        }
        Some(self.is_there().ok()?.then_some(self.address))
    }

    fn is_there(&mut self) -> Result<bool, Failure> {
        let Some(event) = &self.upload else { return Ok(true) };
        let over = self.memory.context.is_over(event)?;
        if over {
            self.memory.uploads.lock().events.extend(self.upload.take());
        }
        Ok(over)
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // The copy ends before its memory is reused. A failed copy is not under way.
        while let Ok(false) = self.is_there() {
            std::thread::yield_now();
        }
        self.memory.give_back(self.part.clone());
    }
}
