//! The kernels of one context: loading, launching, unloading.

use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLockReadGuard};

use super::job::{Job, THREADS};
use super::lane::{Code, Lane, close};
use super::launch::{Strides, Work};
use super::launcher::{Launcher, Launching};
use super::line::{Line, Track};
use super::packed::Packed;
use super::pieces::Pieces;
use super::slots::Slots;
use crate::context::Context;
use crate::driver::{Driver, Failure, Image, Priority, Stream};
use crate::mapping_gate::Gate;
use crate::order::DefaultStream;

/// The number of checks that may find the default stream busy before the kernels are loaded. Each check skips twice as
/// many chances as the one before.
const LOOKS: u32 = 16;

/// The kernels of a context, if they are loaded.
pub(crate) struct Kernels {
    context: Arc<Context>,
    default_stream: Arc<DefaultStream>,
    /// True if kernels should be loaded.
    wanted: bool,
    gate: Arc<Gate>,
    launching: Arc<Launching>,
    state: Mutex<State>,
    /// The number of chances to skip before the next check.
    pass: AtomicU32,
    pub(super) slots: Mutex<Slots>,
}

#[derive(Default)]
enum State {
    /// Not loaded. This many checks found the default stream busy.
    Waiting(u32),
    #[default]
    Untried,
    Loaded(Box<Loaded>),
    /// They cannot be loaded.
    Off,
}

/// A loaded module, and the lane of its jobs.
struct Loaded {
    code: Code<{ NAMES.len() }>,
    lane: Lane,
    /// Those of jobs, for each track's stream.
    launchers: [[Launcher; JOBS]; Track::ALL.len()],
    /// The one whose launches were compared.
    compared: Launcher,
    /// For jobs within the device. `None` if the driver refused it: these follow the others then.
    within: Option<Stream>,
    /// The jobs of each track's stream.
    lines: [Line; Track::ALL.len()],
    /// First jobs that copy nothing. They make the driver allocate everything that later jobs need.
    first: Vec<Job>,
    /// Revoked jobs that are still in the stream.
    revoked: Vec<Job>,
    /// True once the driver has refused a launch.
    off: bool,
}

/// By the numbers of `Kernel`, and then the one that is no job's.
const NAMES: [&CStr; 4] =
    [c"cableway_copy_pieces", c"cableway_copy_strided", c"cableway_copy_packed", c"cableway_copy_signalled"];
/// The kernels of jobs.
const JOBS: usize = NAMES.len() - 1;
const SIGNALLED: usize = JOBS;

impl Kernels {
    pub(crate) fn new(
        context: Arc<Context>,
        default_stream: Arc<DefaultStream>,
        wanted: bool,
        gate: Arc<Gate>,
        launching: Arc<Launching>,
    ) -> Kernels {
        let (state, pass, slots) = (Mutex::default(), AtomicU32::new(0), Mutex::new(Slots::new()));
        Kernels { context, default_stream, wanted, gate, launching, state, pass, slots }
    }

    /// Loads the kernels once, if the device is free or the default stream was just found `idle`, and if that is not held
    /// off ([`Gate`]). If this call loaded them, returns a guard under which more may be loaded. The context is current.
    #[inline]
    pub(crate) fn load(&self, idle: bool) -> Option<RwLockReadGuard<'_, ()>> {
        if self.wanted && !self.tried() { self.look_and_load(idle) } else { None }
    }

    /// Checks whether they are loaded or never will be.
    pub(crate) fn tried(&self) -> bool {
        self.pass.load(Ordering::Relaxed) == u32::MAX
    }

    #[cold]
    fn look_and_load(&self, idle: bool) -> Option<RwLockReadGuard<'_, ()>> {
        match self.pass.load(Ordering::Relaxed) {
            left @ 1.. if !idle => {
                self.pass.store(left - 1, Ordering::Relaxed);
                None
            }
            _ => self.load_slowly(idle),
        }
    }

    fn load_slowly(&self, idle: bool) -> Option<RwLockReadGuard<'_, ()>> {
        let loading = self.gate.enter()?;
        let mut state = self.state.try_lock()?;
        let looks = match &*state {
            State::Untried => 0,
            State::Waiting(looks) => *looks,
            State::Loaded(_) | State::Off => return None,
        };
        if !idle && !matches!(self.default_stream.is_idle(), Ok(Some(true))) {
            *state = State::Waiting(looks + 1);
            self.pass.store(1 << looks.min(LOOKS), Ordering::Relaxed);
            return None;
        }
        let (begun, driver) = (Instant::now(), self.context.driver);
        *state = match Loaded::new(driver, &self.launching) {
            Ok(loaded) => {
                log::debug!("context {}: kernels loaded in {:?}", self.context.id, begun.elapsed());
                State::Loaded(Box::new(loaded))
            }
            Err(failure) => {
                let (call, reason) = (failure.call, driver.reason(failure));
                log::info!("kernels cannot be loaded, copy engines make all copies: {call}: {reason}");
                State::Off
            }
        };
        self.pass.store(u32::MAX, Ordering::Relaxed);
        matches!(*state, State::Loaded(_)).then_some(loading)
    }

    /// Checks whether a job launched now would probably start. Makes no driver call.
    pub(crate) fn ready(&self) -> bool {
        if self.pass.load(Ordering::Relaxed) != u32::MAX {
            return false;
        }
        match &mut *self.state.lock() {
            State::Loaded(loaded) => loaded.ready(),
            _ => false,
        }
    }

    /// Checks whether no kernel will ever start.
    pub(crate) fn are_off(&self) -> bool {
        match &*self.state.lock() {
            State::Off => true,
            State::Loaded(loaded) => loaded.off,
            State::Untried | State::Waiting(_) => false,
        }
    }

    /// Launches a job. Returns `None` if that is impossible now. Calls `first` with the stream just before. The context
    /// is current.
    pub(super) fn launch(
        &self,
        work: &mut Work,
        track: Track,
        first: impl FnOnce(&Stream) -> Result<(), Failure>,
    ) -> Result<Option<Job>, Failure> {
        let driver = self.context.driver;
        let mut state = self.state.lock();
        let State::Loaded(loaded) = &mut *state else { return Ok(None) };
        if !loaded.ready() {
            return Ok(None);
        }
        let Some(job) = loaded.lane.words.job() else { return Ok(None) };
        let launched = first(loaded.stream(track)).and_then(|()| loaded.launch(driver, track, work, &job));
        let Err(failure) = launched else {
            loaded.note(track, &job);
            return Ok(Some(job));
        };
        loaded.lane.words.give_back(job);
        if failure.context_gone() {
            return Err(failure);
        }
        loaded.refused(driver, failure);
        Ok(None)
    }

    /// Returns whether the kernels are loaded.
    pub(crate) fn are_loaded(&self) -> bool {
        matches!(&*self.state.lock(), State::Loaded(loaded) if !loaded.off)
    }

    /// Launches the kernel that is no job's in a stream of the context. Returns false if that is impossible. The context is
    /// current.
    ///
    /// # Safety
    /// The argument is the kernel's, and kernels in the context may access its memory.
    pub(super) unsafe fn launch_signalled(
        &self,
        blocks: u32,
        argument: *mut c_void,
        stream: &Stream,
    ) -> Result<bool, Failure> {
        let driver = self.context.driver;
        let function = match &*self.state.lock() {
            State::Loaded(loaded) if !loaded.off => loaded.code.function(SIGNALLED),
            _ => return Ok(false),
        };
        // Nothing is locked, because a driver waits where many launches are behind a wait that another thread may have to end.
        // SAFETY: the caller's promise. The module stays loaded as long as this value.
        match unsafe { driver.launch(function, blocks, THREADS, argument, stream) } {
            Ok(()) => Ok(true),
            Err(failure) if failure.context_gone() => Err(failure),
            Err(failure) => {
                if let State::Loaded(loaded) = &mut *self.state.lock() {
                    loaded.refused(driver, failure);
                }
                Ok(false)
            }
        }
    }

    /// Checks whether the first job of a track has waited this long for room on the device.
    pub(super) fn stalled(&self, track: Track, patience: Duration) -> bool {
        match &mut *self.state.lock() {
            State::Loaded(loaded) => {
                let track = loaded.track(track);
                loaded.lines[track as usize].stalled(&loaded.lane.words, patience)
            }
            _ => false,
        }
    }

    /// Checks the streams for errors. The context is current.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let State::Loaded(loaded) = &*self.state.lock() else { return Ok(()) };
        Track::ALL.into_iter().try_for_each(|track| self.context.driver.is_idle(loaded.stream(track)).map(drop))
    }

    /// Releases a job that has ended or was revoked.
    pub(super) fn give_back(&self, job: Job) {
        if let State::Loaded(loaded) = &mut *self.state.lock() {
            if job.ended() { loaded.lane.words.give_back(job) } else { loaded.revoked.push(job) }
        }
    }
}

impl Drop for Kernels {
    /// The stream contains only revoked jobs.
    fn drop(&mut self) {
        let State::Loaded(loaded) = std::mem::replace(self.state.get_mut(), State::Off) else { return };
        // A destroyed context has released its objects.
        if let Ok(_scope) = self.context.enter() {
            loaded.destroy(self.context.driver);
        }
    }
}

impl Loaded {
    fn new(driver: &dyn Driver, launching: &Arc<Launching>) -> Result<Loaded, Failure> {
        let code = Code::load(driver, Image::Copy, NAMES)?;
        let lane = match Lane::new(driver) {
            Ok(lane) => lane,
            Err(failure) => {
                code.unload(driver);
                return Err(failure);
            }
        };
        let within = driver.new_stream(Priority::Highest).ok();
        let compared = Launcher::new(driver, code.function(SIGNALLED), &lane.stream, launching);
        let launchers = Track::ALL.map(|track| {
            let stream = stream_of(&lane, within.as_ref(), track);
            std::array::from_fn(|kernel| Launcher::new(driver, code.function(kernel), stream, launching))
        });
        let lines = Track::ALL.map(|_| Line::new());
        let (first, revoked) = (Vec::new(), Vec::new());
        let mut loaded = Loaded { code, lane, launchers, compared, within, lines, first, revoked, off: false };
        match loaded.launch_first(driver) {
            Ok(()) => Ok(loaded),
            Err(failure) => {
                loaded.destroy(driver);
                Err(failure)
            }
        }
    }

    /// Launches each kernel, because a driver may load it as late as its first launch.
    fn launch_first(&mut self, driver: &dyn Driver) -> Result<(), Failure> {
        let mut signalled = Kernels::nothing_signalled();
        // SAFETY: the kernel's argument. It accesses no memory. The stream is waited for before the module is unloaded.
        unsafe {
            let argument = (&raw mut signalled).cast::<c_void>();
            self.compared.compare(driver, argument, &self.lane.stream)?;
        }
        let nothing =
            [Work::Pieces(Box::new(Pieces::NOTHING)), Work::Strided(Strides::NOTHING), Work::Packed(Packed::NOTHING)];
        for mut work in nothing {
            let Some(job) = self.lane.words.job() else { continue };
            self.launch(driver, Track::Common, &mut work, &job)?;
            self.note(Track::Common, &job);
            self.first.push(job);
        }
        Ok(())
    }

    /// Checks whether the first jobs have run and no revoked job is in the stream.
    fn ready(&mut self) -> bool {
        for jobs in [&mut self.first, &mut self.revoked] {
            for job in jobs.extract_if(.., |job| job.ended()) {
                self.lane.words.give_back(job);
            }
        }
        !self.off && self.first.is_empty() && self.revoked.is_empty()
    }

    fn launch(&mut self, driver: &dyn Driver, track: Track, work: &mut Work, job: &Job) -> Result<(), Failure> {
        let blocks = work.blocks(self.lane.multiprocessors);
        let (kernel, argument) = work.for_job(job);
        let track = self.track(track);
        let launcher = &mut self.launchers[track as usize][kernel as usize];
        let stream = stream_of(&self.lane, self.within.as_ref(), track);
        // SAFETY: the kernel's argument as it declares it; the caller that added the copies vouches for the memory.
        unsafe { launcher.launch(driver, blocks, argument, stream) }
    }

    /// Notes that the driver has refused a launch. If the kernels are not at fault, copy engines will fail, too.
    fn refused(&mut self, driver: &dyn Driver, failure: Failure) {
        log::info!("copy engines make all copies from now on: {}: {}", failure.call, driver.reason(failure));
        self.off = true;
    }

    /// Records that a job is in the stream of a track.
    fn note(&mut self, track: Track, job: &Job) {
        let track = self.track(track);
        self.lines[track as usize].launched(&self.lane.words, job);
    }

    /// Returns the track that has a stream for this one's jobs.
    fn track(&self, wanted: Track) -> Track {
        if self.within.is_some() { wanted } else { Track::Common }
    }

    fn stream(&self, track: Track) -> &Stream {
        stream_of(&self.lane, self.within.as_ref(), track)
    }

    fn destroy(mut self, driver: &dyn Driver) {
        self.ready();
        if !self.first.is_empty() || !self.revoked.is_empty() {
            // A revoked job still waits for room on the device, perhaps forever, and reads its words after that.
            std::mem::forget(self.lane.words);
            return;
        }
        if let Some(stream) = self.within {
            close(driver, stream);
        }
        self.lane.destroy(driver);
        let launchers = self.launchers.into_iter().flatten().chain([self.compared]);
        launchers.for_each(|launcher| launcher.destroy(driver));
        self.code.unload(driver);
    }
}

fn stream_of<'s>(lane: &'s Lane, within: Option<&'s Stream>, track: Track) -> &'s Stream {
    match (track, within) {
        (Track::WithinDevice, Some(stream)) => stream,
        _ => &lane.stream,
    }
}
