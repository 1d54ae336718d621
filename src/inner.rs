//! What a world, its communicators and their operations share: the engine, and the process's place in the job.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cableway_base::{Parameters, Rank};
use cableway_btl::Modex;
use cableway_coll::{Collectives, Notices};
use cableway_common_cuda::Devices;
use cableway_pml::{ActiveMessages, Config, Engine, OneSided, Streams};
use cableway_transports::Growth;

use crate::Error;
use crate::progress::ProgressThread;

/// State that communicators share with their world.
pub(crate) struct Inner {
    // Declared first, so that the thread ends before the engine is dropped.
    _progress_thread: Option<ProgressThread>,
    /// As the thread above, it ends before the engine is dropped.
    pub(crate) streams: OnceLock<Streams>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) collectives: Arc<Collectives>,
    /// The agreements of communicators on algorithms for device memory.
    pub(crate) notices: Arc<Notices>,
    pub(crate) one_sided: Arc<OneSided>,
    pub(crate) active: ActiveMessages,
    pub(crate) modex: Arc<dyn Modex>,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) devices: Devices,
    contexts: AtomicU32,
    workers: AtomicU32,
    left: AtomicBool,
}

/// What a process brings to a job that it joins.
pub(crate) struct Seat {
    pub(crate) modex: Arc<dyn Modex>,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) devices: Devices,
}

/// The context of [`World::communicator`](crate::World::communicator).
pub(crate) const WORLD_CONTEXT: u32 = 0;

/// The first context that the library keeps for itself. No communicator of the program has it or a later one.
const HIDDEN_CONTEXTS: u32 = u32::MAX - 15;

/// The context of active messages.
const ACTIVE_CONTEXT: u32 = HIDDEN_CONTEXTS;

/// The context of one-sided operations.
const ONE_SIDED_CONTEXT: u32 = HIDDEN_CONTEXTS + 1;

impl Inner {
    /// Opens the transports, makes an engine, and waits until all processes of the job have done so.
    pub(crate) fn join(seat: Seat) -> Result<Arc<Inner>, Error> {
        let start = Instant::now();
        let Seat { modex, parameters, devices } = seat;
        let btls = cableway_transports::open(modex.job(), Growth::Fixed, &parameters, &devices)?;
        let config = Config { modex: modex.clone(), parameters: parameters.clone(), devices: devices.clone(), btls };
        let engine = Engine::new(config)?;
        let job = modex.job();
        let one_sided = Arc::new(OneSided::new(&engine, ONE_SIDED_CONTEXT, job.size, job.rank)?);
        let active = ActiveMessages::new(&engine, ACTIVE_CONTEXT, (0..job.size).collect(), job.rank)?;
        modex.fence()?;
        let progress_thread = parameters.progress_thread.then(|| ProgressThread::start(&engine)).transpose()?;
        log::debug!("joined {job:?} in {:?}", start.elapsed());
        Ok(Arc::new(Inner {
            _progress_thread: progress_thread,
            streams: OnceLock::new(),
            collectives: Collectives::new(engine.clone(), &parameters),
            notices: Notices::carried_by(&engine),
            one_sided,
            active,
            engine,
            modex,
            parameters,
            devices,
            contexts: AtomicU32::new(0),
            workers: AtomicU32::new(0),
            left: AtomicBool::new(false),
        }))
    }

    /// Returns a context that no process of the job has used. Each process counts in its own residue class modulo the
    /// size of the job. Returns none when the numbers are used up.
    pub(crate) fn new_context(&self) -> Option<u32> {
        let job = self.modex.job();
        let number = self.contexts.fetch_add(1, Ordering::Relaxed);
        context_of(number, job.size, job.rank)
    }

    /// Returns the number of the next worker. Equal in all processes, because they make workers together.
    pub(crate) fn number_of_next_worker(&self) -> u32 {
        self.workers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns how long to wait for sent messages to be handed over.
    pub(crate) fn peer_timeout(&self) -> Duration {
        self.parameters.peer_timeout
    }

    /// Leaves the job, and returns whether all messages were handed over; see [`World::finalize`](crate::World::finalize).
    pub(crate) fn finalize(&self) -> bool {
        if !self.left.swap(true, Ordering::AcqRel) && !self.engine.is_forked() {
            // Posts own their data, so nobody else waits for them.
            let end = Instant::now() + self.peer_timeout();
            let pending = || self.active.poster().pending() + self.one_sided.pending();
            self.engine.wait_until(|| pending() == 0 || Instant::now() > end);
            self.active.close();
            self.one_sided.close();
        }
        self.engine.finalize(self.peer_timeout())
    }
}

/// Returns the context with this number of one process, or none if it would be one of the hidden contexts.
fn context_of(number: u32, size: u32, rank: Rank) -> Option<u32> {
    let context = number.checked_mul(size)?.checked_add(rank)?.checked_add(WORLD_CONTEXT + 1)?;
    (context < HIDDEN_CONTEXTS).then_some(context)
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            // A forked child must not close the resources of its parent, and the parent's threads do not exist here.
            std::mem::forget(self.engine.clone());
            std::mem::forget(self.collectives.clone());
            std::mem::forget(self.modex.clone());
        } else if !self.finalize() {
            log::warn!("left the job before all sent messages were handed over: raise peer_timeout to wait longer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_no_hidden_context() {
        let last = HIDDEN_CONTEXTS - 1 - (WORLD_CONTEXT + 1);
        assert_eq!(context_of(last, 1, 0), Some(HIDDEN_CONTEXTS - 1));
        for number in [last + 1, ACTIVE_CONTEXT - 1, u32::MAX - 1, u32::MAX] {
            assert_eq!(context_of(number, 1, 0), None);
        }
        assert_eq!(context_of(last / 2, 2, 0), Some(HIDDEN_CONTEXTS - 1));
        assert_eq!(context_of(last / 2, 2, 1), None);
    }
}
