//! Windows of puts, gets and active messages of rank 0, from one thread or several. Each thread of rank 0 has a thread of
//! rank 1, which serves until its window or all windows are over. The threads share one world, or have a worker each.

use cableway::{Communicator, Request, World};

use super::landing::Landing;
use super::memory::Memory;
use super::remote::Remote;
use super::shape::Shape;
use super::side::Side;
use crate::cli::Failure;

/// The tag of the first thread; each thread has the next one.
const OVER: i32 = 100;

/// The puts and gets of one thread: its registrations, and memory of this rank for them.
pub(crate) struct Endpoint<'a> {
    on: &'a Communicator,
    // Ends before the memory.
    remote: Remote<'a>,
    out: Memory,
    inbox: Memory,
}

impl<'a> Endpoint<'a> {
    /// Makes the endpoint of puts into the peer's `inbox`.
    pub(crate) fn of_puts(world: &'a World, out: Memory, inbox: Memory) -> Result<Self, Failure> {
        // SAFETY: the memory is dropped after this, and no rank reads what the puts write.
        let remote = unsafe { Remote::new(world, &inbox, Shape::Contiguous)? };
        Ok(Endpoint { on: world.communicator(), remote, out, inbox })
    }

    /// Makes the endpoint of gets of the peer's `out`.
    pub(crate) fn of_gets(world: &'a World, out: Memory, inbox: Memory) -> Result<Self, Failure> {
        // SAFETY: the memory is dropped after this, and nobody writes to it.
        let remote = unsafe { Remote::new(world, &out, Shape::Contiguous)? };
        Ok(Endpoint { on: world.communicator(), remote, out, inbox })
    }

    /// Runs `windows` if this is rank 0, and else waits until those of the same thread in rank 0 are over.
    fn serve(&self, thread: u32, windows: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let tag = OVER + thread as i32;
        if self.on.rank() == 0 {
            windows()?;
            self.on.send(&[0_u8; 1], 1, tag)?;
        } else {
            self.on.recv(&mut [0_u8; 1], 0, tag)?;
        }
        Ok(())
    }
}

impl Side<'_> {
    /// Puts, `window` at a time in each thread. The number is that of windows of each thread.
    pub(super) fn puts(&self, endpoints: &[Endpoint<'_>], size: u64, count: u32) -> Result<(), Failure> {
        let window = self.plan.window(size);
        self.in_threads(endpoints, |endpoint, thread| {
            let (message, place) = (endpoint.out.message(0, size), endpoint.remote.place());
            endpoint.serve(thread, || {
                for _ in 0..count {
                    endpoint.on.scope(|scope| {
                        let puts: Result<Vec<Request<'_, '_>>, _> =
                            (0..window).map(|_| scope.put(&message, place)).collect();
                        puts?.into_iter().try_for_each(|put| put.wait().map(drop))
                    })?;
                }
                Ok(())
            })
        })
    }

    /// Gets of rank 1's memory, as [`puts`](Self::puts).
    pub(super) fn gets(&self, endpoints: &[Endpoint<'_>], size: u64, count: u32) -> Result<(), Failure> {
        let window = self.plan.window(size);
        self.in_threads(endpoints, |endpoint, thread| {
            let place = endpoint.remote.place();
            // SAFETY: nobody reads the memory, and any bytes are valid there.
            let mut buffers = unsafe { endpoint.inbox.shared(window, size) };
            endpoint.serve(thread, || {
                for _ in 0..count {
                    endpoint.on.scope(|scope| {
                        let gets: Result<Vec<Request<'_, '_>>, _> =
                            buffers.iter_mut().map(|buffer| scope.get(buffer, place)).collect();
                        gets?.into_iter().try_for_each(|get| get.wait().map(drop))
                    })?;
                }
                Ok(())
            })
        })
    }

    /// Active messages, as [`puts`](Self::puts). Rank 1 answers a window whose messages have landed.
    pub(super) fn posts(&self, landings: &mut [Landing<'_>], size: u64, count: u32) -> Result<(), Failure> {
        let (window, first) = (self.plan.window(size), self.on.rank() == 0);
        let message = self.out.message(0, size);
        self.in_threads(landings, |landing, thread| {
            let (on, tag) = (landing.world.communicator(), OVER + thread as i32);
            for done in 1..=count {
                if first {
                    on.scope(|scope| {
                        let posts: Result<Vec<Request<'_, '_>>, _> =
                            (0..window).map(|_| scope.post_am(&message, 1, landing.id, &[])).collect();
                        posts?.into_iter().try_for_each(|post| post.wait().map(drop))
                    })?;
                    on.recv(&mut [0_u8; 1], 1, tag)?;
                } else {
                    landing.wait(u64::from(window) * u64::from(done))?;
                    on.send(&[0_u8; 1], 0, tag)?;
                }
            }
            Ok(())
        })?;
        if !first {
            let each = u64::from(window) * u64::from(count);
            landings.iter_mut().for_each(|landing| landing.awaited += each);
        }
        Ok(())
    }

    /// Calls `work` in each thread, of which this one is the first, with what the thread uses and its number.
    fn in_threads<T: Sync>(
        &self,
        used: &[T],
        work: impl Fn(&T, u32) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let work = |thread: u32| work(&used[thread as usize], thread);
        let work = &work;
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..self.plan.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            let mut result = work(0);
            for other in others {
                let ended = other.join().unwrap_or_else(|_| Err(Failure::failed(1, "a thread panicked")));
                result = result.and(ended);
            }
            result
        })
    }
}
