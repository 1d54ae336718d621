//! Lists of blocks, copied to the devices whose kernels read them.
//!
//! A list is made in host memory, and serves from there. But a kernel takes eight bytes of it for every block: 16 MiB in
//! blocks of 8 bytes, read and packed on an H200, took 350 us, as long as the list takes over PCIe, and the data 50. So
//! what is used again is copied to the device, while the kernels go on reading it where it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cudarc::driver::sys::{CUevent_st, CUstream, CUstream_st};
use parking_lot::Mutex;

use super::context::{Context, Handle};
use super::driver::Driver;
use super::scratch::Memory;
use super::status::Failure;
use super::stream;

/// Lists are rounded up to powers of two from this on, so that one's memory serves another.
const SMALLEST: usize = 4096;

/// A context's device memory for lists, as far as none has it, and what copies them there.
#[derive(Default)]
pub(super) struct ListMemory {
    /// By size. What a list leaves is kept: to free it might wait for whatever the device does.
    kept: Mutex<Vec<(usize, Memory)>>,
    /// Bytes that were allocated.
    allocated: AtomicUsize,
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
    /// Memory of that size; none while there is no room, or while the default stream has work to do, for which an
    /// allocation might wait.
    fn take(&self, context: &Context, size: usize) -> Result<Option<Memory>, Failure> {
        let mut kept = self.kept.lock();
        kept.retain(|(_, memory)| memory.lives(context));
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
        let Uploads { stream, events } = std::mem::take(&mut *self.uploads.lock());
        for event in events {
            stream::destroy_event(context.driver, event.0);
        }
        // SAFETY: ours, taken out, and no list is left that waits for anything in it.
        if let Some(Err(failure)) = stream.map(|stream| unsafe { context.driver.cuStreamDestroy(stream.0) }) {
            log::debug!("destroying a stream: {}", context.driver.reason(failure));
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
        let size = len.max(SMALLEST).next_power_of_two();
        let Some(memory) = context.lists.take(context, size)? else { return Ok(None) };
        let mut copy = OnDevice { context: context.clone(), upload: None, memory: None, size };
        let to = memory.address();
        copy.memory = Some(memory);
        let _scope = context.enter()?;
        // SAFETY: the list stays as it is longer than this copy of it, which is waited for; the memory is its own.
        copy.upload = Some(unsafe { context.lists.uploads.lock().begin(context.driver, (to, entries, len)) }?);
        Ok(Some(copy))
    }

    /// Its address once it is there; none if it is of no use any more.
    fn look(&mut self) -> Option<Option<u64>> {
        let memory = self.memory.as_ref().filter(|memory| memory.lives(&self.context))?;
        let address = memory.address() as u64;
        Some(self.is_there().ok()?.then_some(address))
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
        if let Some(memory) = self.memory.take().filter(|memory| memory.lives(&self.context)) {
            self.context.lists.give_back(self.size, memory);
        }
    }
}
