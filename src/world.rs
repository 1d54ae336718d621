//! A process as a member of its job.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cableway_base::{Counters, Parameters, Rank, Source};
use cableway_btl::Modex;
use cableway_coll::{Collectives, Notices};
use cableway_common_cuda::Devices;
use cableway_pml::{ActiveMessages, Config, Engine, OneSided, Streams};
use cableway_transports::Growth;

use crate::communicator::Communicator;
use crate::device::Device;
use crate::progress::ProgressThread;
use crate::{Error, StartedBy};

/// This process as a member of its job. Every method may be called from any thread.
///
/// The process leaves the job when the world and every communicator made from it have been dropped, or when it calls
/// [`finalize`](Self::finalize). A process joins its job once; a second `init` fails. A process started without a
/// launcher may call `init` several times: each world is then a separate job of one process.
pub struct World {
    inner: Arc<Inner>,
    everyone: Communicator,
}

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
    devices: Devices,
    contexts: AtomicU32,
    workers: AtomicU32,
    left: AtomicBool,
}

impl World {
    /// Joins the job with the parameters of the environment.
    ///
    /// This takes a few milliseconds. It connects to no peer and creates nothing on a device; both happen at the first
    /// message that needs them.
    ///
    /// # Errors
    /// A parameter is invalid, the launcher does not answer, or a transport cannot be opened.
    pub fn init() -> Result<World, Error> {
        WorldOptions::from_environment()?.init()
    }

    /// Returns the parameters of the environment, to change them before joining the job.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::options()?.set("progress_thread", "yes")?.init()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A parameter in the environment is invalid.
    pub fn options() -> Result<WorldOptions, Error> {
        WorldOptions::from_environment()
    }

    /// Returns the rank of this process in the job, from 0 to `size() - 1`.
    pub fn rank(&self) -> Rank {
        self.inner.modex.job().rank
    }

    /// Returns the number of processes in the job.
    pub fn size(&self) -> u32 {
        self.inner.modex.job().size
    }

    /// Returns the number of processes of the job on this node, this one included.
    pub fn local_size(&self) -> u32 {
        self.inner.modex.job().local_size
    }

    /// Returns the communicator of all processes of the job.
    pub fn communicator(&self) -> &Communicator {
        &self.everyone
    }

    /// Returns the devices that this process can use.
    pub fn devices(&self) -> &Devices {
        &self.inner.devices
    }

    /// Returns a device that this process can use, to allocate memory there. The devices are counted from 0. Initialises the
    /// driver.
    ///
    /// # Errors
    /// There is no driver, or no such device.
    pub fn device(&self, index: u32) -> Result<Device<'_>, Error> {
        Device::new(&self.inner.devices, index)
    }

    /// Returns the parameters in force.
    pub fn parameters(&self) -> &Parameters {
        &self.inner.parameters
    }

    /// Returns a snapshot of the counters of messages and bytes, by protocol.
    pub fn counters(&self) -> Counters {
        self.inner.engine.counters()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Leaves the job. Waits up to the parameter `peer_timeout` for messages sent before to be handed over, and returns
    /// whether all of them were. Later operations on communicators that still exist fail.
    pub fn finalize(self) -> bool {
        self.inner.finalize()
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("job", self.inner.modex.job()).finish()
    }
}

/// Parameters of a [`World`] before it joins its job. Made by [`World::options`].
#[derive(Clone, Debug)]
pub struct WorldOptions {
    parameters: Parameters,
    device_libraries: Vec<PathBuf>,
}

impl WorldOptions {
    fn from_environment() -> Result<Self, Error> {
        Ok(WorldOptions { parameters: Parameters::from_environment()?, device_libraries: Vec::new() })
    }

    /// Sets a parameter. `cableway info --all` lists the names and their values.
    ///
    /// # Errors
    /// No parameter has this name, or the value does not parse.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, Error> {
        self.parameters.set(name, value, Source::Program)?;
        Ok(self)
    }

    /// Replaces all parameters, those read from the environment included.
    pub fn parameters(mut self, parameters: Parameters) -> Self {
        self.parameters = parameters;
        self
    }

    /// Loads a device driver's library from `folder`, instead of from the folder that `CABLEWAY_CUDA_LIBDIR` or
    /// `CABLEWAY_HIP_LIBDIR` names or the loader's path. Once for each vendor; the others are left out.
    pub fn device_library(mut self, folder: impl Into<PathBuf>) -> Self {
        self.device_libraries.push(folder.into());
        self
    }

    /// Joins the job; see [`World::init`].
    ///
    /// # Errors
    /// The same as those of [`World::init`].
    pub fn init(self) -> Result<World, Error> {
        let modex = StartedBy::detect().join()?;
        let parameters = Arc::new(self.parameters);
        let folders: Vec<&Path> = self.device_libraries.iter().map(PathBuf::as_path).collect();
        let devices = match &folders[..] {
            [] => Devices::open(&parameters),
            folders => Devices::open_in_all(folders, &parameters),
        };
        World::join(Seat { modex, parameters, devices })
    }
}

/// What a process brings to a job that it joins.
pub(crate) struct Seat {
    pub(crate) modex: Arc<dyn Modex>,
    pub(crate) parameters: Arc<Parameters>,
    pub(crate) devices: Devices,
}

impl World {
    /// Opens the transports, makes an engine, and waits until all processes of the job have done so.
    pub(crate) fn join(seat: Seat) -> Result<World, Error> {
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
        let inner = Arc::new(Inner {
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
        });
        let everyone = Communicator::of_world(&inner)?;
        log::debug!("joined {:?} in {:?}", inner.modex.job(), start.elapsed());
        Ok(World { inner, everyone })
    }
}

/// The context of [`World::communicator`].
pub(crate) const WORLD_CONTEXT: u32 = 0;

/// The first context that the library keeps for itself. No communicator of the program has it or a later one.
const HIDDEN_CONTEXTS: u32 = u32::MAX - 15;

/// The context of active messages.
const ACTIVE_CONTEXT: u32 = HIDDEN_CONTEXTS;

/// The context of one-sided operations.
const ONE_SIDED_CONTEXT: u32 = HIDDEN_CONTEXTS + 1;

impl Inner {
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

    fn finalize(&self) -> bool {
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
