//! A process as a member of its job.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cableway_base::{Counters, Parameters, Rank, Source};
use cableway_common_cuda::{DeviceAllocation, Devices};

use crate::communicator::Communicator;
use crate::device::Device;
use crate::inner::{Inner, Seat};
use crate::{Error, SendBuffer, StartedBy};

/// This process as a member of its job. Every method may be called from any thread.
///
/// The process leaves the job when the world and every communicator made from it have been dropped, or when it calls
/// [`finalize`](Self::finalize). A process joins its job once; a second `init` fails. A process started without a
/// launcher may call `init` several times: each world is then a separate job of one process.
pub struct World {
    inner: Arc<Inner>,
    everyone: Communicator,
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

    /// Finds the allocation that holds a buffer, by a question to the driver. A [`RawBuffer`](crate::RawBuffer) or other
    /// [`DeviceMemory`](crate::DeviceMemory) that names it spares later messages this question. Memory that the library
    /// allocates names it already.
    ///
    /// Returns `None` for host memory, managed memory, pools and `cuMemCreate`, for empty buffers and those with a layout, and
    /// while a capture hides something: then ask again later.
    ///
    /// # Errors
    /// Work that is queued on the memory cannot be waited for.
    pub fn allocation_of(&self, memory: &(impl SendBuffer + ?Sized)) -> Result<Option<DeviceAllocation>, Error> {
        let buffer = memory.readable()?;
        let plain = buffer.layout().is_none().then(|| (buffer.address(), usize::try_from(buffer.count())));
        let (Some((address, Ok(len))), devices) = (plain, &self.inner.devices) else { return Ok(None) };
        Ok(devices.allocation_of(address, len))
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

impl World {
    /// Joins the job, and makes the communicator of all processes.
    pub(crate) fn join(seat: Seat) -> Result<World, Error> {
        let inner = Inner::join(seat)?;
        let everyone = Communicator::of_world(&inner)?;
        Ok(World { inner, everyone })
    }
}
