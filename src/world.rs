//! A process's place in its job.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cableway_base::{Counters, Parameters, Rank, Source};
use cableway_btl::Modex;
use cableway_common_cuda::Devices;
use cableway_pml::{Config, Engine};
use cableway_transports::Growth;

use crate::communicator::Communicator;
use crate::progress::ProgressThread;
use crate::{Error, StartedBy};

/// This process as a member of its job. Every method may be called from any thread.
///
/// The job is left when the world and every communicator made from it have been dropped, or by
/// [`finalize`](Self::finalize). A process joins a job once: a second `init` is an error, unless nobody started the
/// process as part of one (then each world is a job of its own).
pub struct World {
    inner: Arc<Inner>,
    everyone: Communicator,
}

/// What communicators share with their world.
pub(crate) struct Inner {
    // Ends before the engine does.
    _progress_thread: Option<ProgressThread>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) modex: Arc<dyn Modex>,
    parameters: Arc<Parameters>,
    devices: Devices,
    contexts: AtomicU32,
}

impl World {
    /// Joins the job with the parameters of the environment. Takes a few milliseconds; connects to no peer and
    /// creates nothing on a device.
    ///
    /// # Errors
    /// A bad parameter, no launcher where there should be one, or a transport that cannot be set up.
    pub fn init() -> Result<World, Error> {
        WorldOptions::from_environment()?.init()
    }

    /// For setting parameters first.
    ///
    /// # Errors
    /// A bad parameter in the environment.
    pub fn options() -> Result<WorldOptions, Error> {
        WorldOptions::from_environment()
    }

    /// This process, counted from 0.
    pub fn rank(&self) -> Rank {
        self.inner.modex.job().rank
    }

    /// Processes of the job.
    pub fn size(&self) -> u32 {
        self.inner.modex.job().size
    }

    /// How many of them are on this node, this one included.
    pub fn local_size(&self) -> u32 {
        self.inner.modex.job().local_size
    }

    /// The communicator of all processes.
    pub fn communicator(&self) -> &Communicator {
        &self.everyone
    }

    /// Device memory, as this process sees it.
    pub fn devices(&self) -> &Devices {
        &self.inner.devices
    }

    /// The parameters in force.
    pub fn parameters(&self) -> &Parameters {
        &self.inner.parameters
    }

    /// What was sent and how, so far.
    pub fn counters(&self) -> Counters {
        self.inner.engine.counters()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Leaves the job: what was sent before is handed over first, within the parameter `peer_timeout`. Returns whether
    /// all of it was. Operations on communicators that are still there fail from now on.
    pub fn finalize(self) -> bool {
        self.inner.finalize()
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("job", self.inner.modex.job()).finish()
    }
}

/// Parameters for a world to be.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    parameters: Parameters,
    device_library: Option<PathBuf>,
}

impl WorldOptions {
    fn from_environment() -> Result<Self, Error> {
        Ok(WorldOptions { parameters: Parameters::from_environment()?, device_library: None })
    }

    /// Sets a parameter, as `cableway info --all` lists them.
    ///
    /// # Errors
    /// An unknown name, or a value that does not parse.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, Error> {
        self.parameters.set(name, value, Source::Program)?;
        Ok(self)
    }

    /// Takes all parameters as given, the environment's included.
    pub fn parameters(mut self, parameters: Parameters) -> Self {
        self.parameters = parameters;
        self
    }

    /// The folder of the device driver's library, instead of `CABLEWAY_CUDA_LIBDIR` and the loader's path.
    pub fn device_library(mut self, folder: impl Into<PathBuf>) -> Self {
        self.device_library = Some(folder.into());
        self
    }

    /// Joins the job; see [`World::init`].
    ///
    /// # Errors
    /// As there.
    pub fn init(self) -> Result<World, Error> {
        let start = Instant::now();
        let modex = StartedBy::detect().join()?;
        let parameters = Arc::new(self.parameters);
        let devices = match &self.device_library {
            Some(folder) => Devices::open_in(Some(folder), &parameters),
            None => Devices::open(&parameters),
        };
        let btls = cableway_transports::open(modex.job(), Growth::Fixed, &parameters, &devices)?;
        let config = Config { modex: modex.clone(), parameters: parameters.clone(), devices: devices.clone(), btls };
        let engine = Engine::new(config)?;
        modex.fence()?;
        let progress_thread = parameters.progress_thread.then(|| ProgressThread::start(&engine)).transpose()?;
        let inner = Arc::new(Inner {
            _progress_thread: progress_thread,
            engine,
            modex,
            parameters,
            devices,
            contexts: AtomicU32::new(0),
        });
        let everyone = Communicator::of_everyone(&inner)?;
        log::debug!("joined {:?} in {:?}", inner.modex.job(), start.elapsed());
        Ok(World { inner, everyone })
    }
}

/// The context of [`World::communicator`].
pub(crate) const WORLD_CONTEXT: u32 = 0;

impl Inner {
    /// A context that no process of the job has seen: each process counts in a residue class of its own.
    pub(crate) fn new_context(&self) -> Option<u32> {
        let job = self.modex.job();
        let number = self.contexts.fetch_add(1, Ordering::Relaxed);
        number.checked_mul(job.size)?.checked_add(job.rank)?.checked_add(WORLD_CONTEXT + 1)
    }

    /// How long what was sent may take to leave.
    pub(crate) fn patience(&self) -> Duration {
        self.parameters.peer_timeout
    }

    fn finalize(&self) -> bool {
        self.engine.finalize(self.patience())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            // What it has of the parent's is not the child's to close, and its threads are not there to be ended.
            std::mem::forget(self.engine.clone());
            std::mem::forget(self.modex.clone());
        } else if !self.finalize() {
            log::warn!("the job was left before everything that was sent had gone out");
        }
    }
}
