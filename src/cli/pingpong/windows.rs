//! Windows of puts, gets and active messages of rank 0, from one thread or several. Each thread of rank 0 has a thread of
//! rank 1, which serves until its window or all windows are over.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cableway::{DeviceMemory, DeviceMemoryMut, Request, World};
use parking_lot::Mutex;

use super::memory::Memory;
use super::remote::Remote;
use super::side::Side;
use crate::cli::Failure;

/// The tag and the id of the first thread; each thread has the next one.
const OVER: i32 = 100;
const FIRST: u32 = 100;

impl Side<'_> {
    /// Puts, `window` at a time in each thread. The number is that of windows of each thread.
    pub(super) fn puts(&mut self, remote: &Remote<'_>, size: u64, count: u32) -> Result<(), Failure> {
        let (on, window, place) = (self.on, self.plan.window(size), remote.place());
        let message = self.out.message(0, size);
        self.serve_windows(|| {
            for _ in 0..count {
                on.scope(|scope| {
                    let puts: Result<Vec<Request<'_, '_>>, _> =
                        (0..window).map(|_| scope.put(&message, place)).collect();
                    puts?.into_iter().try_for_each(|put| put.wait().map(drop))
                })?;
            }
            Ok(())
        })
    }

    /// Gets of rank 1's memory, as [`puts`](Self::puts).
    pub(super) fn gets(&mut self, remote: &Remote<'_>, size: u64, count: u32) -> Result<(), Failure> {
        let (on, window, place) = (self.on, self.plan.window(size), remote.place());
        let room = &self.inbox;
        self.serve_windows(|| {
            // SAFETY: nobody reads the memory, and any bytes are valid there.
            let mut buffers = unsafe { room.shared(window, size) };
            for _ in 0..count {
                on.scope(|scope| {
                    let gets: Result<Vec<Request<'_, '_>>, _> =
                        buffers.iter_mut().map(|buffer| scope.get(buffer, place)).collect();
                    gets?.into_iter().try_for_each(|get| get.wait().map(drop))
                })?;
            }
            Ok(())
        })
    }

    /// Active messages, as [`puts`](Self::puts). Rank 1 answers a window whose messages have landed.
    pub(super) fn posts(&mut self, landings: &mut Landings<'_>, size: u64, count: u32) -> Result<(), Failure> {
        let (on, window, first) = (self.on, self.plan.window(size), self.on.rank() == 0);
        let message = self.out.message(0, size);
        let each = u64::from(window) * u64::from(count);
        let shared: &Landings<'_> = landings;
        in_threads(self.plan.threads, |thread| {
            for done in 1..=count {
                if first {
                    on.scope(|scope| {
                        let posts: Result<Vec<Request<'_, '_>>, _> =
                            (0..window).map(|_| scope.post_am(&message, 1, FIRST + thread, &[])).collect();
                        posts?.into_iter().try_for_each(|post| post.wait().map(drop))
                    })?;
                    on.recv(&mut [0_u8; 1], 1, OVER + thread as i32)?;
                } else {
                    shared.wait(thread, u64::from(window) * u64::from(done))?;
                    on.send(&[0_u8; 1], 0, OVER + thread as i32)?;
                }
            }
            Ok(())
        })?;
        if !first {
            landings.awaited += each;
        }
        Ok(())
    }

    /// Runs `windows` in each thread of rank 0, while those of rank 1 wait.
    fn serve_windows(&self, windows: impl Fn() -> Result<(), Failure> + Sync) -> Result<(), Failure> {
        let (on, first) = (self.on, self.on.rank() == 0);
        in_threads(self.plan.threads, |thread| {
            let tag = OVER + thread as i32;
            if first {
                windows()?;
                on.send(&[0_u8; 1], 1, tag)?;
            } else {
                on.recv(&mut [0_u8; 1], 0, tag)?;
            }
            Ok(())
        })
    }
}

/// Calls `work` with the number of each thread, of which this one is the first.
fn in_threads(count: u32, work: impl Fn(u32) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    let work = &work;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count).map(|thread| scope.spawn(move || work(thread))).collect();
        let mut result = work(0);
        for other in others {
            let ended = other.join().unwrap_or_else(|_| Err(Failure::failed(1, "a thread panicked")));
            result = result.and(ended);
        }
        result
    })
}

/// Where active messages land: memory that all of them share.
struct Landing {
    memory: Arc<Memory>,
    len: usize,
}

// SAFETY: an allocation that outlives the value, because the value shares it. Nobody reads its content, and any bytes are
// valid there.
unsafe impl DeviceMemory for Landing {
    type Item = u8;

    fn address(&self) -> *mut c_void {
        self.memory.whole().0.cast()
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl DeviceMemoryMut for Landing {}

/// This rank's handlers, one for each thread, and how many messages have landed by each.
pub(crate) struct Landings<'a> {
    world: &'a World,
    landed: Arc<[AtomicU64]>,
    failure: Arc<Mutex<Option<cableway::Error>>>,
    /// The number of messages that each thread has waited for.
    awaited: u64,
}

impl<'a> Landings<'a> {
    /// Registers the handlers.
    pub(crate) fn new(world: &'a World, memory: Memory, threads: u32) -> Result<Self, Failure> {
        let memory = Arc::new(memory);
        let landed: Arc<[AtomicU64]> = (0..threads).map(|_| AtomicU64::new(0)).collect();
        let failure = Arc::<Mutex<Option<cableway::Error>>>::default();
        let landings = Landings { world, landed: landed.clone(), failure: failure.clone(), awaited: 0 };
        for thread in 0..threads {
            let (memory, landed, failure) = (memory.clone(), landed.clone(), failure.clone());
            world.am_handler(FIRST + thread, move |message| {
                if let Some(data) = message.data()
                    // SAFETY: handlers run one at a time, and nobody reads the memory.
                    && unsafe { memory.land(data) }
                {
                    landed[thread as usize].fetch_add(1, Ordering::Release);
                    return;
                }
                let len = memory.whole().1.min(usize::try_from(message.len()).unwrap_or(usize::MAX));
                let (landed, failure) = (landed.clone(), failure.clone());
                message.receive(Landing { memory: memory.clone(), len }, move |_, result| {
                    if let Err(error) = result {
                        *failure.lock() = Some(error);
                    }
                    landed[thread as usize].fetch_add(1, Ordering::Release);
                });
            })?;
        }
        Ok(landings)
    }

    /// Waits until `more` messages of a thread have landed, besides those of earlier measurements.
    fn wait(&self, thread: u32, more: u64) -> Result<(), Failure> {
        let landed = &self.landed[thread as usize];
        self.world.progress_until(|| landed.load(Ordering::Acquire) >= self.awaited + more);
        self.failure.lock().take().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Drop for Landings<'_> {
    fn drop(&mut self) {
        for thread in 0..self.landed.len() as u32 {
            self.world.remove_am_handler(FIRST + thread);
        }
    }
}
