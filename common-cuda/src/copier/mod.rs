//! The resident copier of one context: a kernel that stays on the device for a while and makes small copies on command.
//!
//! A copy engine takes twice as long for a few bytes, because each copy needs a driver call for its submission and
//! another for its completion. A command to a running kernel takes two stores, and its completion one load.
//!
//! While the kernel runs, `cudaDeviceSynchronize` and `cudaFree` wait in every thread of the program. So the kernel has
//! a lease. It ends after `device_copier_idle` without a command, and after `device_copier_lease` in any case. The next
//! launch waits for as long as the kernel was there. The copier launches the kernel where small copies follow each
//! other, and sends no command before the kernel reports that it runs. So a kernel for which the device has no room
//! delays no copy; the copier tells it to end. Copy engines take the commands that the kernel did not begin.
//!
//! The module is loaded with the other kernels, at a moment when loading waits for nothing. A device that time-slices
//! processes also suspends this kernel: the copier does not launch it again where commands wait for long.

mod lines;

use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::context::Context;
use crate::copy::RowCopy;
use crate::driver::{Driver, Failure, Function, Image, Module, Priority, Stream};
use crate::settings::Settings;
use lines::{GROUPS, Lines};

const NAME: &CStr = c"cableway_copy_resident";
const LANES: u32 = 32;

/// Bytes that one group copies at a time: eight loads of 16 bytes by each of its lanes.
const COMMAND: usize = 4096;
/// Bytes that one post takes at most.
pub(crate) const MOST: usize = GROUPS * COMMAND;
/// The driver is asked whether the kernel failed after this time without progress, and then after twice as long each
/// time.
const SILENCE: Duration = Duration::from_millis(1);
/// If a command waits this many times longer than a kernel may take to start, the device was executing other processes.
/// After this many more launches with such a command than without, the kernel is not launched again.
const TURNS: u32 = 5;
const SLOW: u32 = 4;

/// The copier of a context, if there is one.
pub(crate) struct Copier {
    context: Arc<Context>,
    settings: Settings,
    /// The kernel is loaded and usable.
    able: AtomicBool,
    state: Mutex<Option<Resident>>,
}

/// Commands of one operation.
#[derive(Default)]
pub(crate) struct Posted {
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

/// The progress of an operation's commands.
pub(crate) enum Progress {
    Pending,
    Done,
    /// Some commands were not begun and will not be. The others are done.
    Lost,
}

impl Posted {
    pub(crate) fn any(&self) -> bool {
        self.at.is_some()
    }
}

impl Copier {
    pub(crate) fn new(context: Arc<Context>, settings: Settings) -> Copier {
        Copier { context, settings, able: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Loads the kernel. If the driver refuses, copy engines make small copies. The context is current, and no kernels
    /// fill its device.
    pub(crate) fn load(&self) {
        let driver = self.context.driver;
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

    /// Checks whether there may be room for copies. Makes no driver call.
    pub(crate) fn runs(&self) -> bool {
        self.able.load(Ordering::Acquire)
            && self.state.try_lock().is_some_and(|state| {
                state
                    .as_ref()
                    .is_some_and(|resident| resident.takes_commands() && (0..GROUPS).any(|group| resident.runs(group)))
            })
    }

    /// Posts the copies, of at most [`MOST`] bytes. Returns false if it has no room for them now. Makes no driver call.
    pub(crate) fn post(&self, pieces: &[RowCopy], posted: &mut Posted) -> bool {
        if !self.able.load(Ordering::Acquire) {
            return false;
        }
        let Some(mut state) = self.state.try_lock() else { return false };
        state.as_mut().is_some_and(|resident| resident.post(pieces, posted))
    }

    /// Records that a small copy went to another mechanism, and launches the kernel if small copies follow each other.
    /// The context is current.
    pub(crate) fn want(&self) {
        if !self.able.load(Ordering::Acquire) {
            return;
        }
        let Some(mut state) = self.state.try_lock() else { return };
        let Some(resident) = state.as_mut() else { return };
        let driver = self.context.driver;
        if let Err(failure) = resident.want(driver, &self.settings) {
            let (call, reason) = (failure.call, driver.reason(failure));
            log::info!("the resident copier is not launched any more: {call}: {reason}");
            self.able.store(false, Ordering::Release);
        }
    }

    /// Returns the progress of the commands. After `Done` and `Lost` the list is empty.
    pub(crate) fn look(&self, posted: &mut Posted) -> Result<Progress, Failure> {
        let mut state = self.state.lock();
        let (Some(resident), Some(at)) = (state.as_mut(), posted.at) else { return Ok(Progress::Done) };
        if resident.settle(posted) {
            posted.at = None;
            return Ok(if std::mem::take(&mut posted.lost) { Progress::Lost } else { Progress::Done });
        }
        let waited = at.elapsed();
        if waited > posted.asked {
            posted.asked = (posted.asked * 2).max(SILENCE);
            resident.slow |= waited > self.settings.patience * TURNS;
            if resident.slow && resident.slow_launches >= SLOW && self.able.swap(false, Ordering::AcqRel) {
                log::info!(
                    "context {}: the resident copier is not launched any more: a command waited for {waited:?}, as if \
                     other processes had turns on the device",
                    self.context.id
                );
            }
            let _scope = self.context.enter()?;
            resident.check(self.context.driver)?;
        }
        Ok(Progress::Pending)
    }

    /// Forgets commands of a context that has failed, where no kernel runs any more.
    pub(crate) fn forget(&self, posted: &mut Posted) {
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
}

impl Drop for Copier {
    /// Ends the kernel; no commands are under way.
    fn drop(&mut self) {
        let Some(resident) = self.state.get_mut().take() else { return };
        // A destroyed context has released its objects.
        if let Ok(_scope) = self.context.enter() {
            resident.destroy(self.context.driver);
        }
    }
}

/// Tells whether the kernel is running.
#[derive(Clone, Copy)]
enum Phase {
    Resting { until: Instant },
    Launched { at: Instant, stopped: bool },
}

struct Resident {
    module: Module,
    function: Function,
    /// A separate stream, so that nothing waits behind the kernel.
    stream: Stream,
    lines: Lines,
    phase: Phase,
    /// The number of the last launch, never 0.
    launch: u32,
    /// The number of the last command, never 0.
    number: u32,
    /// Groups whose command may still run.
    busy: [bool; GROUPS],
    /// A command of this launch waited for long.
    slow: bool,
    slow_launches: u32,
    /// When a small copy last went to another mechanism.
    wanted: Option<Instant>,
}

/// The kernel's argument.
#[repr(C)]
struct Argument {
    lines: u64,
    reports: u64,
    idle: u64,
    lease: u64,
    number: u32,
}

impl Resident {
    fn new(driver: &dyn Driver) -> Result<Resident, Failure> {
        let module = driver.load_module(Image::Resident)?;
        let (function, lines, stream) = match Self::parts(driver, &module) {
            Ok(parts) => parts,
            Err(failure) => {
                unload(driver, module);
                return Err(failure);
            }
        };
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
        // A driver may load a kernel as late as its first launch. This launch ends at once.
        match resident.launch(driver, Duration::ZERO, Duration::ZERO) {
            Ok(()) => Ok(resident),
            Err(failure) => {
                resident.destroy(driver);
                Err(failure)
            }
        }
    }

    fn parts(driver: &dyn Driver, module: &Module) -> Result<(Function, Lines, Stream), Failure> {
        let function = driver.function(module, NAME)?;
        let lines = Lines::new(driver)?;
        let stream = driver.new_stream(Priority::Highest).inspect_err(|_| lines.destroy(driver))?;
        Ok((function, lines, stream))
    }

    fn post(&mut self, pieces: &[RowCopy], posted: &mut Posted) -> bool {
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

    /// Removes finished commands. Returns whether none is left.
    fn settle(&mut self, posted: &mut Posted) -> bool {
        let Resident { lines, busy, .. } = self;
        posted.commands.retain(|command| {
            // Read the end first: the kernel reports copies before its end, so an end without a copy means a lost copy.
            let ended = lines.ended(command.group, posted.launch);
            let done = lines.done(command.group, command.number);
            posted.lost |= ended && !done;
            busy[command.group] = !(done || ended);
            busy[command.group]
        });
        posted.commands.is_empty()
    }

    fn want(&mut self, driver: &dyn Driver, settings: &Settings) -> Result<(), Failure> {
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

    /// Launches the kernel. No group has a command, and the kernel treats the present lines as old.
    fn launch(&mut self, driver: &dyn Driver, idle: Duration, lease: Duration) -> Result<(), Failure> {
        self.launch = next(self.launch);
        let (lines, reports) = self.lines.device();
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (idle, lease) = (nanoseconds(idle), nanoseconds(lease));
        let mut argument = Argument { lines, reports, idle, lease, number: self.launch };
        let threads = GROUPS as u32 * LANES;
        // SAFETY: the kernel's argument as it declares it. The caller that adds copies vouches for the memory.
        unsafe { driver.launch(self.function, 1, threads, (&raw mut argument).cast::<c_void>(), &self.stream) }?;
        self.phase = Phase::Launched { at: Instant::now(), stopped: false };
        Ok(())
    }

    /// Checks for an error in the stream. The context is current.
    fn check(&self, driver: &dyn Driver) -> Result<(), Failure> {
        driver.is_idle(&self.stream).map(|_| ())
    }

    fn destroy(self, driver: &dyn Driver) {
        self.lines.stop(self.launch);
        if matches!(self.phase, Phase::Launched { .. }) && !self.lines.started(0, self.launch) {
            // The kernel waits for room on the device, perhaps forever, and reads its line after that.
            std::mem::forget(self.lines);
            return;
        }
        // The kernel in the stream ends at once.
        let _ = driver.synchronise(&self.stream);
        if let Err(failure) = driver.destroy_stream(self.stream) {
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

fn unload(driver: &dyn Driver, module: Module) {
    if let Err(failure) = driver.unload_module(module) {
        log::debug!("unloading the resident copier: {}", driver.reason(failure));
    }
}
