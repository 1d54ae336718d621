//! Our kernels in one context: loaded early, launched as revocable jobs.
//!
//! They are loaded when the context's device memory is first seen, not when they are first of use: to load a module
//! waits for kernels that fill the device, and one of the program's may wait for our message. So they are loaded only
//! while the default stream has nothing to do, and tried once; whatever is refused (a driver that does not take the
//! text, memory) leaves the copy engines to do the work, and one line says why.
//!
//! A job that has not started after some time, because other kernels fill the device, is revoked (`job`), and its
//! copies go by copy engine. It stays in the stream until the device has room, and as long nothing more is launched.

mod job;
mod launch;
mod packed;

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute_enum as Attribute, CUfunction, CUmod_st, CUmodule, CUstream, CUstream_flags_enum,
    CUstream_st,
};
use parking_lot::Mutex;

use super::context::{Context, Handle};
use super::driver::Driver;
use super::info;
use super::status::Failure;
pub(super) use job::Job;
use job::Words;
pub(super) use launch::{Pieces, Strides, Work};
pub(super) use packed::{Packed, is_worth_a_launch};

/// The text that kernels/compile makes of kernels/copy.cu; a zero ends it, as the driver wants it.
const IMAGE: &str = concat!(include_str!("../../../kernels/copy.ptx"), "\0");

/// Looks at a busy default stream before the kernels are loaded; each next one comes after twice as many chances.
const LOOKS: u32 = 16;

/// The kernels of a context, if there are any yet.
#[derive(Default)]
pub(super) struct Kernels {
    state: Mutex<State>,
    /// Chances to load that are let pass.
    pass: AtomicU32,
}

#[derive(Default)]
enum State {
    /// Not loaded; so many looks found the default stream busy.
    Waiting(u32),
    #[default]
    Untried,
    Loaded(Box<Loaded>),
    /// They cannot be.
    Off,
}

/// A module and what its jobs need.
struct Loaded {
    module: Handle<CUmod_st>,
    functions: [Handle<c_void>; NAMES.len()],
    /// Of its own, so that no copy waits behind a job that does not start; of high priority, so that jobs get the room
    /// that other kernels leave.
    stream: Handle<CUstream_st>,
    multiprocessors: u32,
    words: Words,
    /// Jobs that copy nothing, by which the driver has everything in place for later ones.
    first: Vec<Job>,
    /// Revoked jobs that are still in the stream.
    revoked: Vec<Job>,
    /// The driver has refused to launch one.
    off: bool,
}

/// Which kernel.
#[derive(Clone, Copy)]
enum Kernel {
    Pieces,
    Strided,
    Packed,
}

const NAMES: [&std::ffi::CStr; 3] = [c"cableway_copy_pieces", c"cableway_copy_strided", c"cableway_copy_packed"];

impl Kernels {
    /// Loads them unless that was tried, if the device is free. The context is current.
    #[inline]
    pub(super) fn load(&self, context: &Context) {
        if context.settings.kernels && !self.tried() {
            self.look_and_load(context);
        }
    }

    /// The same, where the legacy default stream has just been found idle.
    #[inline]
    pub(super) fn load_idle(&self, context: &Context) {
        if context.settings.kernels && !self.tried() {
            self.load_slowly(context, true);
        }
    }

    /// Whether they are loaded, or never will be.
    pub(super) fn tried(&self) -> bool {
        self.pass.load(Ordering::Relaxed) == u32::MAX
    }

    #[cold]
    fn look_and_load(&self, context: &Context) {
        match self.pass.load(Ordering::Relaxed) {
            0 => self.load_slowly(context, false),
            left => self.pass.store(left - 1, Ordering::Relaxed),
        }
    }

    #[cold]
    fn load_slowly(&self, context: &Context, idle: bool) {
        let Some(mut state) = self.state.try_lock() else { return };
        let looks = match &*state {
            State::Untried => 0,
            State::Waiting(looks) => *looks,
            State::Loaded(_) | State::Off => return,
        };
        if !idle && !matches!(context.is_settled(context.driver), Ok(Some(true))) {
            *state = State::Waiting(looks + 1);
            self.pass.store(1 << looks.min(LOOKS), Ordering::Relaxed);
            return;
        }
        let begun = Instant::now();
        *state = match Loaded::new(context.driver) {
            Ok(loaded) => {
                if context.settings.copier {
                    context.copier.load(context.driver);
                }
                log::debug!("context {}: kernels loaded in {:?}", context.id, begun.elapsed());
                State::Loaded(Box::new(loaded))
            }
            Err(failure) => {
                log::info!(
                    "copies are left to copy engines, as kernels cannot be loaded: {}: {}",
                    failure.call,
                    context.driver.reason(failure)
                );
                State::Off
            }
        };
        self.pass.store(u32::MAX, Ordering::Relaxed);
    }

    /// Whether a job launched now would run, as far as can be seen. Asks nobody.
    pub(super) fn ready(&self) -> bool {
        if self.pass.load(Ordering::Relaxed) != u32::MAX {
            return false;
        }
        match &mut *self.state.lock() {
            State::Loaded(loaded) => loaded.ready(),
            _ => false,
        }
    }

    /// Whether none will ever run.
    pub(super) fn are_off(&self) -> bool {
        match &*self.state.lock() {
            State::Off => true,
            State::Loaded(loaded) => loaded.off,
            State::Untried | State::Waiting(_) => false,
        }
    }

    /// Launches a job; none where that cannot be now. `first` is called with the stream just before. The context is
    /// current.
    pub(super) fn launch(
        &self,
        driver: &Driver,
        work: &mut Work,
        first: impl FnOnce(CUstream) -> Result<(), Failure>,
    ) -> Result<Option<Job>, Failure> {
        let mut state = self.state.lock();
        let State::Loaded(loaded) = &mut *state else { return Ok(None) };
        if !loaded.ready() {
            return Ok(None);
        }
        let Some(job) = loaded.words.job() else { return Ok(None) };
        let Err(failure) = first(loaded.stream.0).and_then(|()| loaded.launch(driver, work, &job)) else {
            loaded.words.launched(&job);
            return Ok(Some(job));
        };
        loaded.words.give_back(job);
        if failure.context_gone() {
            return Err(failure);
        }
        // Copy engines will tell if it is not the kernels' fault.
        log::info!("copies are left to copy engines from here on: {}: {}", failure.call, driver.reason(failure));
        loaded.off = true;
        Ok(None)
    }

    /// Whether the first job of the stream has waited so long for room on the device.
    pub(super) fn stalled(&self, patience: Duration) -> bool {
        match &mut *self.state.lock() {
            State::Loaded(loaded) => loaded.words.stalled(patience),
            _ => false,
        }
    }

    /// Whether something has gone wrong with the jobs of the stream. The context is current.
    pub(super) fn check(&self, driver: &Driver) -> Result<(), Failure> {
        let State::Loaded(loaded) = &*self.state.lock() else { return Ok(()) };
        // SAFETY: our stream, of the current context.
        match unsafe { driver.cuStreamQuery(loaded.stream.0) } {
            Err(Failure { code: Failure::NOT_READY, .. }) => Ok(()),
            answer => answer,
        }
    }

    /// Takes a job back that has ended, or one that was revoked.
    pub(super) fn give_back(&self, job: Job) {
        if let State::Loaded(loaded) = &mut *self.state.lock() {
            if job.ended() { loaded.words.give_back(job) } else { loaded.revoked.push(job) }
        }
    }

    /// Destroys what it has; the context is current, and nothing is in its stream but revoked jobs.
    pub(super) fn destroy(&self, driver: &Driver) {
        if let State::Loaded(loaded) = std::mem::replace(&mut *self.state.lock(), State::Off) {
            loaded.destroy(driver);
        }
        self.pass.store(u32::MAX, Ordering::Relaxed);
    }
}

impl Loaded {
    fn new(driver: &Driver) -> Result<Loaded, Failure> {
        let mut device: CUdevice = 0;
        // SAFETY: fills in the current context's device.
        unsafe { driver.cuCtxGetDevice(&raw mut device) }?;
        let multiprocessors = info::attribute(driver, device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: fills in the module of a terminated text.
        unsafe { driver.cuModuleLoadData(&raw mut module, IMAGE.as_ptr().cast()) }?;
        let module = Handle(module);
        let functions = NAMES.map(|name| {
            let mut function: CUfunction = std::ptr::null_mut();
            // SAFETY: fills in the function of a module that was just loaded.
            unsafe { driver.cuModuleGetFunction(&raw mut function, module.0, name.as_ptr()) }
                .map(|()| Handle(function.cast::<c_void>()))
        });
        let [pieces, strided, packed] = functions;
        let made = pieces.and_then(|pieces| Ok([pieces, strided?, packed?])).and_then(|functions| {
            let words = Words::new(driver)?;
            match new_stream(driver) {
                Ok(stream) => Ok((functions, words, stream)),
                Err(failure) => {
                    words.destroy(driver);
                    Err(failure)
                }
            }
        });
        let (functions, words, stream) = made.inspect_err(|_| unload(driver, module))?;
        let multiprocessors = u32::try_from(multiprocessors).unwrap_or(1).max(1);
        let mut loaded = Loaded {
            module,
            functions,
            stream,
            multiprocessors,
            words,
            first: Vec::new(),
            revoked: Vec::new(),
            off: false,
        };
        match loaded.launch_first(driver) {
            Ok(()) => Ok(loaded),
            Err(failure) => {
                loaded.destroy(driver);
                Err(failure)
            }
        }
    }

    /// A driver may load a kernel no earlier than when it is launched.
    fn launch_first(&mut self, driver: &Driver) -> Result<(), Failure> {
        let nothing =
            [Work::Pieces(Box::new(Pieces::new())), Work::Strided(Strides::NOTHING), Work::Packed(Packed::NOTHING)];
        for mut work in nothing {
            let Some(job) = self.words.job() else { continue };
            self.launch(driver, &mut work, &job)?;
            self.words.launched(&job);
            self.first.push(job);
        }
        Ok(())
    }

    /// Whether its first jobs have run, and none that was revoked is in the stream.
    fn ready(&mut self) -> bool {
        for jobs in [&mut self.first, &mut self.revoked] {
            for job in jobs.extract_if(.., |job| job.ended()) {
                self.words.give_back(job);
            }
        }
        !self.off && self.first.is_empty() && self.revoked.is_empty()
    }

    fn launch(&self, driver: &Driver, work: &mut Work, job: &Job) -> Result<(), Failure> {
        let (blocks, threads) = (work.blocks(self.multiprocessors), launch::THREADS);
        let (kernel, argument) = work.for_job(job);
        let function = self.functions[kernel as usize].0.cast();
        let mut arguments = [argument];
        let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: a function of the loaded module with its one argument, which the call copies; the stream is of the
        // current context. What the kernel touches is the promise of whoever added the copies.
        unsafe { driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, self.stream.0, arguments, none) }
    }

    fn destroy(mut self, driver: &Driver) {
        self.ready();
        if !self.first.is_empty() || !self.revoked.is_empty() {
            // A revoked job waits for room on the device still, perhaps for ever; it will look at its words then.
            std::mem::forget(self.words);
            return;
        }
        // SAFETY: our stream, of the current context, used by nobody else any more.
        let destroyed = unsafe {
            let _ = driver.cuStreamSynchronize(self.stream.0);
            driver.cuStreamDestroy(self.stream.0)
        };
        if let Err(failure) = destroyed {
            log::debug!("destroying a stream: {}", driver.reason(failure));
        }
        self.words.destroy(driver);
        unload(driver, self.module);
    }
}

pub(super) fn new_stream(driver: &Driver) -> Result<Handle<CUstream_st>, Failure> {
    let (mut least, mut greatest): (c_int, c_int) = (0, 0);
    let mut stream: CUstream = std::ptr::null_mut();
    let flags = CUstream_flags_enum::CU_STREAM_NON_BLOCKING as c_uint;
    // SAFETY: fills in two integers and the new stream.
    unsafe {
        driver.cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)?;
        driver.cuStreamCreateWithPriority(&raw mut stream, flags, greatest)?;
    }
    Ok(Handle(stream))
}

pub(super) fn unload(driver: &Driver, module: Handle<CUmod_st>) {
    // SAFETY: a module of ours, of which no kernel runs.
    if let Err(failure) = unsafe { driver.cuModuleUnload(module.0) } {
        log::debug!("unloading kernels: {}", driver.reason(failure));
    }
}

/// Numbers of jobs, one sequence for all contexts.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A number that no job whose words still lie somewhere has; never 0.
fn next_number() -> u32 {
    loop {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed) as u32;
        if number != 0 {
            return number;
        }
    }
}
