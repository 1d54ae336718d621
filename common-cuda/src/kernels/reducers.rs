//! The kernels of collectives in one context: those that reduce, exchange and move. Each class is loaded when it is first needed.

use std::sync::Arc;

use parking_lot::Mutex;

use super::job::{Argument, Job};
use super::lane::{Code, Lane};
use super::launcher::{Launcher, Launching};
use super::reduce::Class;
use crate::context::Context;
use crate::driver::{Driver, Failure, Stream};
use crate::mapping_gate::Gate;

/// The kernels of a context that reduce, exchange and move.
pub(crate) struct Reducers {
    context: Arc<Context>,
    /// True if kernels should be loaded.
    wanted: bool,
    gate: Arc<Gate>,
    launching: Arc<Launching>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Created with the first class.
    lane: Option<Lane>,
    classes: [Loading; Class::ALL.len()],
    /// True once the driver has refused a launch.
    off: bool,
    /// True once a job was given up that may never end.
    lost: bool,
}

#[derive(Default)]
enum Loading {
    #[default]
    Untried,
    Loaded(Code<1>, Launcher),
    /// The driver refused.
    Off,
}

impl Reducers {
    pub(crate) fn new(context: Arc<Context>, wanted: bool, gate: Arc<Gate>, launching: Arc<Launching>) -> Reducers {
        Reducers { context, wanted, gate, launching, state: Mutex::default() }
    }

    /// Checks whether kernels of a class can be launched, and loads them if nobody has and if that is not held off
    /// ([`Gate`]). That may wait for the device. The context is current.
    pub(crate) fn load(&self, class: Class) -> bool {
        self.wanted && self.load_class(&mut self.state.lock(), class)
    }

    /// Checks whether kernels of a class are loaded and can be launched.
    pub(crate) fn are_loaded(&self, class: Class) -> bool {
        self.state.lock().has(class) == Some(true)
    }

    /// Checks the same. Returns `None` if nobody has tried to load them, and false while another thread loads some.
    pub(crate) fn have_loaded(&self, class: Class) -> Option<bool> {
        if !self.wanted {
            return Some(false);
        }
        self.state.try_lock().map_or(Some(false), |state| state.has(class))
    }

    /// Checks whether kernels of a class can be launched, and loads them if nobody has. The context is current.
    fn load_class(&self, state: &mut State, class: Class) -> bool {
        if let (Loading::Untried, false) = (&state.classes[class as usize], state.off) {
            // Held off: the next call tries again.
            let Some(_opening) = self.gate.enter() else { return false };
            let driver = self.context.driver;
            state.classes[class as usize] = match state.try_load(driver, class, &self.launching) {
                Ok((code, launcher)) => Loading::Loaded(code, launcher),
                Err(failure) => {
                    let (call, reason) = (failure.call, driver.reason(failure));
                    log::info!("kernels cannot be loaded ({class:?}): {call}: {reason}");
                    Loading::Off
                }
            };
        }
        state.has(class) == Some(true)
    }

    /// Launches a kernel of a class. Returns `None` if that is impossible now. Calls `first` with the stream just before. The
    /// context is current.
    ///
    /// # Safety
    /// Kernels in the context can access all memory that the argument of the class names. It stays allocated until the job has
    /// ended. Meanwhile no one else writes the sources or accesses the destinations.
    pub(crate) unsafe fn launch(
        &self,
        class: Class,
        argument: &mut impl Argument,
        first: impl FnOnce(&Stream) -> Result<(), Failure>,
    ) -> Result<Option<Job>, Failure> {
        if !self.wanted {
            return Ok(None);
        }
        let (driver, mut state) = (self.context.driver, self.state.lock());
        if !self.load_class(&mut state, class) {
            return Ok(None);
        }
        let state = &mut *state;
        let (Some(lane), Loading::Loaded(_, launcher)) = (&mut state.lane, &mut state.classes[class as usize]) else {
            return Ok(None);
        };
        let Some(job) = lane.words.job() else { return Ok(None) };
        if let Err(failure) = first(&lane.stream) {
            lane.words.give_back(job);
            return Err(failure);
        }
        let (blocks, argument) = (argument.blocks(lane.multiprocessors), argument.for_job(&job));
        // SAFETY: the kernels of the class declare this argument, and the caller vouches for the memory.
        let launched = unsafe { launcher.launch(driver, blocks, argument, &lane.stream) };
        let Err(failure) = launched else { return Ok(Some(job)) };
        lane.words.give_back(job);
        if failure.context_gone() {
            return Err(failure);
        }
        log::info!("no kernels reduce, exchange or move from now on: {}: {}", failure.call, driver.reason(failure));
        state.off = true;
        Ok(None)
    }

    /// Checks the stream for errors. The context is current.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.state.lock().lane {
            Some(lane) => self.context.driver.is_idle(&lane.stream).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Releases a job that has ended, or gives it up.
    pub(crate) fn give_back(&self, job: Job) {
        let mut state = self.state.lock();
        if !job.ended() {
            // Its slot is not used again.
            (state.lost, state.off) = (true, true);
        } else if let Some(lane) = &mut state.lane {
            lane.words.give_back(job);
        }
    }
}

impl State {
    /// Checks whether the kernel of a class can be launched. Returns `None` if nobody has tried to load it.
    fn has(&self, class: Class) -> Option<bool> {
        match &self.classes[class as usize] {
            _ if self.off => Some(false),
            Loading::Untried => None,
            Loading::Loaded(..) => Some(true),
            Loading::Off => Some(false),
        }
    }

    fn try_load(
        &mut self,
        driver: &dyn Driver,
        class: Class,
        launching: &Arc<Launching>,
    ) -> Result<(Code<1>, Launcher), Failure> {
        let code = Code::load(driver, class.image(), [class.name()])?;
        let lane = match self.lane.take().map_or_else(|| Lane::new(driver), Ok) {
            Ok(lane) => self.lane.insert(lane),
            Err(failure) => {
                code.unload(driver);
                return Err(failure);
            }
        };
        let launcher = Launcher::new(driver, code.function(0), &lane.stream, launching);
        Ok((code, launcher))
    }
}

impl Drop for Reducers {
    /// The stream is empty, unless a job was given up.
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut());
        // A destroyed context has released its objects.
        let Ok(_scope) = self.context.enter() else { return };
        if state.lost {
            // It may still write its words.
            std::mem::forget(state.lane);
            return;
        }
        let driver = self.context.driver;
        if let Some(lane) = state.lane {
            lane.destroy(driver);
        }
        for loading in state.classes {
            if let Loading::Loaded(code, launcher) = loading {
                launcher.destroy(driver);
                code.unload(driver);
            }
        }
    }
}
