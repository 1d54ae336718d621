//! Lists of blocks, copied to the devices whose kernels read them.
//!
//! A list is made in host memory, and serves from there. But a kernel takes eight bytes of it for every block: 16 MiB in
//! blocks of 8 bytes, read and packed on an H200, took 350 us, as long as the list takes over PCIe, and the data 50. So
//! what is used again is copied to the device, while the kernels go on reading it where it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{CUevent_st, CUstream, CUstream_st};
use parking_lot::Mutex;

use super::arena::{Arena, Part};
use super::context::{Context, Handle, Scope};
use super::driver::Driver;
use super::status::Failure;
use super::stream;

/// A context's device memory for lists, and what copies them there.
#[derive(Default)]
pub(super) struct ListMemory {
    /// None until it is of use.
    arena: Mutex<Option<Arena>>,
    uploads: Mutex<Uploads>,
}

/// A stream of its own, in which nothing ever waits for the program's: who drops a list waits for its copy.
#[derive(Default)]
struct Uploads {
    stream: Option<Handle<CUstream_st>>,
    /// Those that nobody uses.
    events: Vec<Handle<CUevent_st>>,
}

impl ListMemory {
    /// So many bytes and their address; none while there is no room, or while the default stream has work to do: to map
    /// memory is not free of charge for it. The context is current.
    fn take(&self, context: &Context, len: usize) -> Result<Option<(Part, u64)>, Failure> {
        let (driver, limit) = (context.driver, context.settings.list_memory);
        if limit == 0 || context.is_settled(driver)? != Some(true) {
            return Ok(None);
        }
        let mut arena = self.arena.lock();
        let arena = match &mut *arena {
            Some(arena) => arena,
            none => none.insert(Arena::reserve(driver, limit)?),
        };
        Ok(arena.take(driver, len)?.map(|part| (part.clone(), arena.address(&part))))
    }

    fn give_back(&self, part: Part) {
        if let Some(arena) = &mut *self.arena.lock() {
            arena.give_back(part);
        }
    }

    fn lives(&self, driver: &Driver) -> bool {
        self.arena.lock().as_ref().is_some_and(|arena| arena.lives(driver))
    }

    /// Gives the memory back, which is the device's and not the context's.
    ///
    /// # Safety
    /// No list is there any more.
    pub(super) unsafe fn unmap(&self, driver: &'static Driver) {
        let _scope = Scope::without_context(driver);
        if let Some(arena) = self.arena.lock().take() {
            // SAFETY: no part is in use without a list.
            unsafe { arena.unmap(driver) };
        }
    }

    /// Destroys what is the context's, which is current.
    pub(super) fn destroy(&self, driver: &Driver) {
        let Uploads { stream, events } = std::mem::take(&mut *self.uploads.lock());
        for event in events {
            stream::destroy_event(driver, event.0);
        }
        // SAFETY: ours, taken out, and no list is left that waits for anything in it.
        if let Some(Err(failure)) = stream.map(|stream| unsafe { driver.cuStreamDestroy(stream.0) }) {
            log::debug!("destroying a stream: {}", driver.reason(failure));
        }
    }
}

impl Uploads {
    /// Begins to copy a list, and answers the event that follows. The context is current.
    ///
    /// # Safety
    /// Both ranges stay as they are until the event is over.
    unsafe fn begin(
        &mut self,
        driver: &Driver,
        (to, from, len): (*mut u8, *const u8, usize),
    ) -> Result<Handle<CUevent_st>, Failure> {
        let stream = match self.stream {
            Some(stream) => stream.0,
            None => self.stream.insert(Handle(stream::new_stream(driver)?)).0,
        };
        let event = match self.events.pop() {
            Some(event) => event,
            None => Handle(stream::new_event(driver)?),
        };
        // SAFETY: the caller's promise; stream and event are of the current context.
        let begun = unsafe {
            driver
                .cuMemcpyAsync(to as u64, from as u64, len, stream)
                .and_then(|()| driver.cuEventRecord(event.0, stream).inspect_err(|_| drain(driver, stream)))
        };
        match begun {
            Ok(()) => Ok(event),
            Err(failure) => {
                self.events.push(event);
                Err(failure)
            }
        }
    }
}

/// Waits for what is in a stream of ours, whose memory is about to be another's.
fn drain(driver: &Driver, stream: CUstream) {
    // SAFETY: our stream, of the current context. That it fails too adds nothing.
    let _ = unsafe { driver.cuStreamSynchronize(stream) };
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
    context: Arc<Context>,
    /// Over once the copy is; none from then on.
    upload: Option<Handle<CUevent_st>>,
    part: Part,
    address: u64,
}

impl Copies {
    /// Where kernels in a context read the list of `len` bytes at `entries`, other than where it is. The copy is made when
    /// it is used again, and if it cannot be then, later: each time it was used twice as often.
    ///
    /// The list stays as it is, and there, as long as this does.
    pub(super) fn address(&self, context: &Arc<Context>, entries: *mut u8, len: usize) -> Option<u64> {
        let mut made = self.made.lock();
        made.retain(|copy| copy.context.alive());
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
        let _scope = context.enter()?;
        let Some((part, address)) = context.lists.take(context, len)? else { return Ok(None) };
        let mut copy = OnDevice { context: context.clone(), upload: None, part, address };
        let to = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the list stays as it is longer than this copy of it, which is waited for; the memory is its own.
        copy.upload = Some(unsafe { context.lists.uploads.lock().begin(context.driver, (to, entries, len)) }?);
        Ok(Some(copy))
    }

    /// Its address once it is there; none if it is of no use any more.
    fn look(&mut self) -> Option<Option<u64>> {
        if !self.context.alive() || !self.context.lists.lives(self.context.driver) {
            return None;
        }
        Some(self.is_there().ok()?.then_some(self.address))
    }

    fn is_there(&mut self) -> Result<bool, Failure> {
        let Some(event) = self.upload else { return Ok(true) };
        let over = self.context.is_over(event.0)?;
        if over {
            self.context.lists.uploads.lock().events.extend(self.upload.take());
        }
        Ok(over)
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // It is over before the memory is given away. Of a copy that failed nothing is under way.
        while let Ok(false) = self.is_there() {
            std::thread::yield_now();
        }
        self.context.lists.give_back(self.part.clone());
    }
}
