//! The resident copier of one context: a kernel that stays for a while and makes small copies as it is told.
//!
//! A copy engine takes twice as long for a few bytes, because each copy is handed to the driver, and the driver asked
//! for its end; to tell a kernel that runs already takes two stores, and to learn the end one load.
//!
//! A kernel of ours that runs makes others wait: `cudaDeviceSynchronize`, `cudaFree`, in any thread of the program. So
//! it stays for a lease: it ends when it had nothing to do for `device_copier_idle`, and after `device_copier_lease` in
//! any case; then it rests for as long as it was there. It is launched where small copies follow each other, and given
//! nothing before it says that it runs: so one that finds no room on its device keeps nothing waiting, and is told to
//! end. What it was given and did not begin before it ended is the copy engines' to do.
//!
//! Loaded with the other kernels, at a moment when to load code waits for nothing. A device that takes turns among
//! processes takes the kernel's turns away, too: where commands wait for long, it is not launched again.

mod lines;

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUfunction, CUmod_st, CUmodule, CUstream_st};
use parking_lot::Mutex;

use super::context::{Context, Handle, Settings};
use super::driver::Driver;
use super::kernels::{new_stream, unload};
use super::pieces::Piece;
use super::status::Failure;
use lines::{GROUPS, Lines};

/// The text that kernels/compile makes of kernels/resident.cu; a zero ends it, as the driver wants it.
const IMAGE: &str = concat!(include_str!("../../../kernels/resident.ptx"), "\0");
const NAME: &std::ffi::CStr = c"cableway_copy_resident";
const LANES: c_uint = 32;

/// What one group copies at a time: eight loads of 16 bytes by each of its lanes.
const COMMAND: usize = 4096;
/// What is given at a time.
pub(super) const MOST: usize = GROUPS * COMMAND;
/// After so long without a sign, and each time after twice as long, the driver is asked whether the kernel failed.
const SILENCE: Duration = Duration::from_millis(1);
/// A command that has waited for so many times the patience with a kernel's start was waiting for the device's turns, and
/// after so many launches that had one, more than had none, no other follows.
const TURNS: u32 = 5;
const SLOW: u32 = 4;

/// The copier of a context, if there is one.
#[derive(Default)]
pub(super) struct Copier {
    /// Loaded, and not given up.
    able: AtomicBool,
    state: Mutex<Option<Resident>>,
}

/// Commands of one operation.
#[derive(Default)]
pub(super) struct Posted {
    commands: Vec<Command>,
    launch: u32,
    at: Option<Instant>,
    asked: Duration,
    lost: bool,
}

#[derive(Clone, Copy)]
struct Command {
    group: usize,
    number: u32,
}

/// How an operation's commands stand.
pub(super) enum Progress {
    Pending,
    Done,
    /// Some were not begun, and will not be; the others are done.
    Lost,
}

impl Posted {
    pub(super) fn any(&self) -> bool {
        self.at.is_some()
    }
}

impl Copier {
    /// Loads it; what the driver refuses leaves small copies to copy engines. The context is current, and its device
    /// not filled by kernels.
    pub(super) fn load(&self, driver: &Driver) {
        match Resident::new(driver) {
            Ok(resident) => {
                *self.state.lock() = Some(resident);
                self.able.store(true, Ordering::Release);
            }
            Err(failure) => {
                log::info!("the resident copier cannot be loaded: {}: {}", failure.call, driver.reason(failure));
            }
        }
    }

    /// Whether it may have room for copies. Asks nobody.
    pub(super) fn runs(&self) -> bool {
        self.able.load(Ordering::Acquire)
            && self.state.try_lock().is_some_and(|state| {
                state
                    .as_ref()
                    .is_some_and(|resident| resident.takes_commands() && (0..GROUPS).any(|group| resident.runs(group)))
            })
    }

    /// Gives it the copies, of no more than [`MOST`] bytes; false if it has no room for them now. Asks nobody.
    pub(super) fn post(&self, pieces: &[Piece], posted: &mut Posted) -> bool {
        if !self.able.load(Ordering::Acquire) {
            return false;
        }
        let Some(mut state) = self.state.try_lock() else { return false };
        state.as_mut().is_some_and(|resident| resident.post(pieces, posted))
    }

    /// A small copy was left to others: launches the kernel if they follow each other. The context is current.
    pub(super) fn want(&self, context: &Context) {
        if !self.able.load(Ordering::Acquire) {
            return;
        }
        let Some(mut state) = self.state.try_lock() else { return };
        let Some(resident) = state.as_mut() else { return };
        if let Err(failure) = resident.want(context.driver, &context.settings) {
            log::info!(
                "the resident copier is not launched any more: {}: {}",
                failure.call,
                context.driver.reason(failure)
            );
            self.able.store(false, Ordering::Release);
        }
    }

    /// How the commands stand. After `Done` and `Lost` there are none any more.
    pub(super) fn look(&self, context: &Context, posted: &mut Posted) -> Result<Progress, Failure> {
        let mut state = self.state.lock();
        let (Some(resident), Some(at)) = (state.as_mut(), posted.at) else { return Ok(Progress::Done) };
        if resident.settle(posted) {
            posted.at = None;
            return Ok(if std::mem::take(&mut posted.lost) { Progress::Lost } else { Progress::Done });
        }
        let waited = at.elapsed();
        if waited > posted.asked {
            posted.asked = (posted.asked * 2).max(SILENCE);
            resident.slow |= waited > context.settings.patience * TURNS;
            if resident.slow && resident.slow_launches >= SLOW && self.able.swap(false, Ordering::AcqRel) {
                log::info!(
                    "context {}: the resident copier is not launched any more: a command waited for {waited:?}, as if \
                     other processes had turns on the device",
                    context.id
                );
            }
            let _scope = context.enter()?;
            resident.check(context.driver)?;
        }
        Ok(Progress::Pending)
    }

    /// Forgets commands of a context that has failed: nothing runs in it.
    pub(super) fn forget(&self, posted: &mut Posted) {
        if !posted.any() {
            return;
        }
        self.able.store(false, Ordering::Release);
        if let Some(resident) = self.state.lock().as_mut() {
            for command in posted.commands.drain(..) {
                resident.busy[command.group] = false;
            }
        }
        *posted = Posted::default();
    }

    /// Ends the kernel and gives back what it has; the context is current, and no commands are under way.
    pub(super) fn destroy(&self, driver: &Driver) {
        self.able.store(false, Ordering::Release);
        if let Some(resident) = self.state.lock().take() {
            resident.destroy(driver);
        }
    }
}

/// Whether the kernel is there.
#[derive(Clone, Copy)]
enum Phase {
    Resting { until: Instant },
    Launched { at: Instant, stopped: bool },
}

struct Resident {
    module: Handle<CUmod_st>,
    function: Handle<c_void>,
    /// Of its own: nothing waits behind it.
    stream: Handle<CUstream_st>,
    lines: Lines,
    phase: Phase,
    /// The number of the last launch, never 0.
    launch: u32,
    /// The number of the last command, never 0.
    number: u32,
    /// Groups whose command is not known to be over.
    busy: [bool; GROUPS],
    /// A command of this launch waited for long.
    slow: bool,
    slow_launches: u32,
    /// When a small copy was last left to others.
    wanted: Option<Instant>,
}

/// What the kernel is told.
#[repr(C)]
struct Argument {
    lines: u64,
    reports: u64,
    idle: u64,
    lease: u64,
    number: u32,
}

impl Resident {
    fn new(driver: &Driver) -> Result<Resident, Failure> {
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: fills in the module of a terminated text.
        unsafe { driver.cuModuleLoadData(&raw mut module, IMAGE.as_ptr().cast()) }?;
        let module = Handle(module);
        let made = Self::parts(driver, module).inspect_err(|_| unload(driver, module))?;
        let (function, lines, stream) = made;
        let phase = Phase::Resting { until: Instant::now() };
        let busy = [false; GROUPS];
        let mut resident = Resident {
            module,
            function,
            stream,
            lines,
            phase,
            launch: 0,
            number: 0,
            busy,
            slow: false,
            slow_launches: 0,
            wanted: None,
        };
        // A driver may load a kernel no earlier than when it is launched. This one ends at once.
        match resident.launch(driver, Duration::ZERO, Duration::ZERO) {
            Ok(()) => Ok(resident),
            Err(failure) => {
                resident.destroy(driver);
                Err(failure)
            }
        }
    }

    fn parts(
        driver: &Driver,
        module: Handle<CUmod_st>,
    ) -> Result<(Handle<c_void>, Lines, Handle<CUstream_st>), Failure> {
        let mut function: CUfunction = std::ptr::null_mut();
        // SAFETY: fills in the function of a module that was just loaded.
        unsafe { driver.cuModuleGetFunction(&raw mut function, module.0, NAME.as_ptr()) }?;
        let lines = Lines::new(driver)?;
        let stream = new_stream(driver).inspect_err(|_| lines.destroy(driver))?;
        Ok((Handle(function.cast()), lines, stream))
    }

    fn post(&mut self, pieces: &[Piece], posted: &mut Posted) -> bool {
        if !self.takes_commands() {
            return false;
        }
        let commands: usize = pieces.iter().map(|piece| piece.width.div_ceil(COMMAND)).sum();
        let mut groups = [0; GROUPS];
        let mut free = 0;
        for group in 0..GROUPS {
            if free < commands && !self.busy[group] && self.runs(group) {
                groups[free] = group;
                free += 1;
            }
        }
        if free < commands {
            return false;
        }
        let mut groups = groups.into_iter();
        posted.commands.clear();
        for piece in pieces {
            for (at, group) in (0..piece.width).step_by(COMMAND).zip(&mut groups) {
                self.number = next(self.number);
                let len = (piece.width - at).min(COMMAND);
                let ends = (piece.dst as u64 + at as u64, piece.src as u64 + at as u64);
                self.lines.command(group, self.number, ends, len as u32);
                self.busy[group] = true;
                posted.commands.push(Command { group, number: self.number });
            }
        }
        (posted.launch, posted.at, posted.asked, posted.lost) = (self.launch, Some(Instant::now()), SILENCE, false);
        true
    }

    fn takes_commands(&self) -> bool {
        matches!(self.phase, Phase::Launched { stopped: false, .. })
    }

    fn runs(&self, group: usize) -> bool {
        self.lines.started(group, self.launch) && !self.lines.ended(group, self.launch)
    }

    /// Takes out the commands that are over; whether all are.
    fn settle(&mut self, posted: &mut Posted) -> bool {
        let Resident { lines, busy, .. } = self;
        posted.commands.retain(|command| {
            // In this order: what is done before the end is said so before the end is.
            let ended = lines.ended(command.group, posted.launch);
            let done = lines.done(command.group, command.number);
            posted.lost |= ended && !done;
            busy[command.group] = !(done || ended);
            busy[command.group]
        });
        posted.commands.is_empty()
    }

    fn want(&mut self, driver: &Driver, settings: &Settings) -> Result<(), Failure> {
        let now = Instant::now();
        let before = self.wanted.replace(now);
        match self.phase {
            Phase::Resting { until } => {
                let follows = before.is_some_and(|before| now - before < settings.copier_idle);
                if follows && now >= until {
                    self.launch(driver, settings.copier_idle, settings.copier_lease)?;
                }
            }
            Phase::Launched { at, stopped } => {
                let over = (0..GROUPS).all(|group| !self.busy[group] && self.lines.ended(group, self.launch));
                if over {
                    let slow = std::mem::take(&mut self.slow);
                    self.slow_launches =
                        if slow { self.slow_launches + 1 } else { self.slow_launches.saturating_sub(1) };
                    let stayed = (now - at).min(settings.copier_lease);
                    self.phase = Phase::Resting { until: at + 2 * stayed };
                } else if !stopped && now - at > settings.patience && !self.lines.started(0, self.launch) {
                    self.lines.stop(self.launch);
                    self.phase = Phase::Launched { at, stopped: true };
                }
            }
        }
        Ok(())
    }

    /// None of its groups has a command: what lies in the lines is old to the kernel that begins.
    fn launch(&mut self, driver: &Driver, idle: Duration, lease: Duration) -> Result<(), Failure> {
        self.launch = next(self.launch);
        let (lines, reports) = self.lines.device();
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (idle, lease) = (nanoseconds(idle), nanoseconds(lease));
        let mut argument = Argument { lines, reports, idle, lease, number: self.launch };
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        let (function, threads) = (self.function.0.cast(), GROUPS as c_uint * LANES);
        let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: a function of the loaded module with its one argument, which the call copies; the stream is of the
        // current context. What the kernel touches is the promise of whoever adds copies.
        unsafe { driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, self.stream.0, arguments, none) }?;
        self.phase = Phase::Launched { at: Instant::now(), stopped: false };
        Ok(())
    }

    /// Whether something has gone wrong in the stream. The context is current.
    fn check(&self, driver: &Driver) -> Result<(), Failure> {
        // SAFETY: our stream, of the current context.
        match unsafe { driver.cuStreamQuery(self.stream.0) } {
            Err(Failure { code: Failure::NOT_READY, .. }) => Ok(()),
            answer => answer,
        }
    }

    fn destroy(self, driver: &Driver) {
        self.lines.stop(self.launch);
        if matches!(self.phase, Phase::Launched { .. }) && !self.lines.started(0, self.launch) {
            // It waits for room on the device, perhaps for ever, and will read its line then.
            std::mem::forget(self.lines);
            return;
        }
        // SAFETY: our stream, of the current context, used by nobody else; the kernel in it ends at once.
        let destroyed = unsafe {
            let _ = driver.cuStreamSynchronize(self.stream.0);
            driver.cuStreamDestroy(self.stream.0)
        };
        if let Err(failure) = destroyed {
            log::debug!("destroying a stream: {}", driver.reason(failure));
        }
        self.lines.destroy(driver);
        unload(driver, self.module);
    }
}

/// The next number, which is never 0.
fn next(number: u32) -> u32 {
    number.wrapping_add(1).max(1)
}
