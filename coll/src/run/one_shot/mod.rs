//! Executes operations in one shot: exchanges of little data through slots.
//!
//! A rank on a device has one kernel do everything ([`Devices::exchange`]). If the others are late, the kernel ends without a
//! result, and the host launches it again once all data has come. A rank in host memory stores and takes lines itself. Each
//! rank decides that for itself, because the lines are the same.
//!
//! [`Devices::exchange`]: cableway_common_cuda::Devices::exchange

mod lists;
mod staged;

use cableway_common_cuda::{Arrived, KernelRun, Order, Reduction};

use super::scene::Scene;
use crate::error::Error;
use crate::placing::Working;
use crate::plan::Place;
use crate::plan::one_shot::OneShot;
use crate::reduce;
use crate::slots::Turn;
use lists::Lists;
use staged::Staged;

/// Polls without data between two checks whether a rank of the communicator is known to have died.
const CHECK_EVERY: u32 = 1 << 6;
/// Polls without data between two attempts to reach the rank that is waited for.
const REACH_EVERY: u32 = 1 << 12;

/// An exchange under way.
pub(super) struct OneShotRun {
    turn: Turn,
    state: State,
    /// The first rank whose data has not come.
    next: usize,
    /// Copies of this rank's data on a device where no kernel can be launched.
    staged: Option<Staged>,
    /// How often data was missing.
    polls: u32,
    /// Why the operation has failed while the kernel runs. The exchange fails when the kernel has ended.
    failure: Option<Error>,
}

enum State {
    /// The kernel runs.
    OnDevice(KernelRun),
    /// Data is missing, for which the kernel or the host waits.
    Waiting,
    Done,
    /// This rank has failed, and waits until all others have begun the exchange: they may read its slot until then.
    Failing(Error),
    Failed(Error),
}

impl OneShotRun {
    /// Begins an exchange: stores this rank's data.
    pub(super) fn new(scene: &Scene<'_>, turn: Turn, shot: &OneShot) -> OneShotRun {
        let mut run = OneShotRun::unbegun(scene, turn);
        if let State::Failed(_) = run.state {
            return run;
        }
        let refused = shot.refused.map(|(sent, expected)| Error::OtherLength { rank: scene.on.rank(), sent, expected });
        let begun = match &scene.site.working {
            _ if let Some(error) = refused => Err(error),
            Working::Device(_) => run.launch(scene, shot),
            Working::Host => {
                run.publish(scene, shot);
                Ok(())
            }
        };
        if let Err(error) = begun {
            run.give_up(scene, shot, error);
        }
        run
    }

    /// Takes part in an exchange after a failure of the operation: tells the others.
    pub(super) fn failed(scene: &Scene<'_>, turn: Turn, shot: &OneShot, error: Error) -> OneShotRun {
        let mut run = OneShotRun::unbegun(scene, turn);
        if let State::Waiting = run.state {
            run.give_up(scene, shot, error);
        }
        run
    }

    fn unbegun(scene: &Scene<'_>, turn: Turn) -> OneShotRun {
        let mut run = OneShotRun { turn, state: State::Waiting, next: 0, staged: None, polls: 0, failure: None };
        if let Err(error) = scene.shared.engine.check_open() {
            // A forked child has no slots.
            run.state = State::Failed(error.into());
            return run;
        }
        run.turn.prepare(scene.on.rank() as usize);
        scene.shared.engine.count_one_shot();
        run
    }

    fn lists(&mut self, scene: &Scene<'_>, shot: &OneShot) -> Lists {
        match &mut self.staged {
            Some(staged) => staged.lists(scene, shot),
            None => Lists::of(scene, shot),
        }
    }

    /// Stores this rank's data, which is in host memory, in its slot.
    fn publish(&mut self, scene: &Scene<'_>, shot: &OneShot) {
        let lists = self.lists(scene, shot);
        // SAFETY: the plan's blocks are in host memory, and stay until the operation has ended. So do copies of them.
        unsafe {
            lists.lines(&self.turn).publish(self.turn.words());
            lists.keep();
        }
    }

    /// Makes it fail, unless it has ended.
    pub(super) fn fail(&mut self, scene: &Scene<'_>, shot: &OneShot, error: &Error) {
        match self.state {
            State::OnDevice(_) => self.failure = Some(error.clone()),
            State::Waiting => self.give_up(scene, shot, error.clone()),
            State::Done | State::Failing(_) | State::Failed(_) => {}
        }
    }

    /// Checks whether no message wakes this process for the next step.
    pub(super) fn needs_polls(&self) -> bool {
        !matches!(self.state, State::Done | State::Failed(_))
    }

    /// Makes progress. Returns true once the output is complete and nobody uses this rank's memory.
    pub(super) fn poll(&mut self, scene: &Scene<'_>, shot: &OneShot) -> Result<bool, Error> {
        if let State::OnDevice(run) = &mut self.state {
            match run.poll() {
                Ok(false) => return Ok(false),
                Ok(true) if run.was_late() => {
                    scene.shared.engine.count_late_kernel();
                    self.state = State::Waiting;
                }
                Ok(true) => self.state = State::Done,
                Err(error) => self.give_up(scene, shot, error.into()),
            }
        }
        if let Some(error) = self.failure.take() {
            // The scratch memory of an operation that has failed has no address.
            self.give_up(scene, shot, error);
        }
        if let State::Waiting = self.state
            && let Err(error) = self.advance(scene, shot)
        {
            self.give_up(scene, shot, error);
        }
        if let State::Failing(error) = &self.state {
            let lists = Lists::of(scene, shot);
            let lines = lists.lines(&self.turn);
            let absent = |from: usize| from != lines.me && lines.has_come(self.turn.words(), from) == Arrived::No;
            let error = error.clone();
            let next = (0..lines.receives.len()).find(|&from| absent(from));
            if next.is_none_or(|from| self.check(scene, from as u32).is_err()) {
                self.state = State::Failed(error);
            }
        }
        match &self.state {
            State::Done => Ok(true),
            State::Failed(error) => Err(error.clone()),
            State::OnDevice(_) | State::Waiting | State::Failing(_) => Ok(false),
        }
    }

    /// Ends the exchange with what has come, or launches the kernel again.
    fn advance(&mut self, scene: &Scene<'_>, shot: &OneShot) -> Result<(), Error> {
        let lists = self.lists(scene, shot);
        let lines = lists.lines(&self.turn);
        let by_kernel = self.staged.is_none() && matches!(scene.site.working, Working::Device(_));
        while self.next < lines.receives.len() {
            let from = self.next;
            let arrived = match from == lines.me {
                true => Arrived::Yes,
                false if by_kernel => lines.has_come(self.turn.words(), from),
                // SAFETY: the plan's places are in host memory that no other step accesses now. So are copies for them.
                false => unsafe { lines.fetch(self.turn.words(), from) },
            };
            match arrived {
                Arrived::Yes => self.next += 1,
                Arrived::No => {
                    let checked = self.check(scene, from as u32);
                    // A rank may have sent its data before it left.
                    let has_come = checked.is_err() && lines.has_come(self.turn.words(), from) != Arrived::No;
                    return if has_come { Ok(()) } else { checked };
                }
                Arrived::Failed => return Err(Error::OtherFailed { rank: from as u32 }),
                Arrived::OtherLength(sent) => {
                    let expected = lines.receives[from].1.into();
                    return Err(Error::OtherLength { rank: from as u32, sent, expected });
                }
            }
        }
        if by_kernel {
            return self.launch(scene, shot);
        }
        if let Some(staged) = &self.staged {
            staged.bring_back(scene, shot)?;
        } else if let Some((folded, combine)) = lists.reduction(scene, shot) {
            let (output, sources) = lists.operands(scene, folded);
            // SAFETY: all sources and the output hold the elements, in host memory that no message accesses now.
            unsafe { reduce::on_host(combine, output, &sources, folded.elements as usize) };
        }
        self.state = State::Done;
        Ok(())
    }

    /// Checks now and then whether a rank that is waited for, or another one, has died. No message tells of that.
    fn check(&mut self, scene: &Scene<'_>, from: u32) -> Result<(), Error> {
        self.polls = self.polls.wrapping_add(1);
        let engine = &scene.shared.engine;
        if self.polls.is_multiple_of(REACH_EVERY) {
            engine.reach(scene.on, from)?;
        }
        if self.polls.is_multiple_of(CHECK_EVERY) {
            engine.check_members(scene.on)?;
        }
        Ok(())
    }

    /// Launches the kernel. If no kernel can be launched, the host does its work.
    fn launch(&mut self, scene: &Scene<'_>, shot: &OneShot) -> Result<(), Error> {
        let Working::Device(at) = &scene.site.working else { return Ok(()) };
        let devices = &scene.shared.pools.devices;
        let lists = Lists::of(scene, shot);
        let operands = lists.reduction(scene, shot).map(|(folded, combine)| {
            let (output, sources) = lists.operands(scene, folded);
            (combine, folded.elements, [output], sources)
        });
        let reduction = operands.as_ref().map(|(combine, elements, destinations, sources)| Reduction {
            operation: combine.operation,
            element: combine.element,
            count: *elements,
            destinations,
            sources,
            kept: None,
        });
        let (order, lines) = (order(scene, shot), lists.lines(&self.turn));
        let launched = match self.turn.slots().registered_at(devices, at) {
            // SAFETY: the plan's blocks and places are in memory of the device, and stay until the operation has ended. No
            // other step accesses them now.
            Some(slots) => unsafe { devices.exchange(at, order, &slots, &lines, reduction.as_ref()) }?,
            None => None,
        };
        match launched {
            Some(run) => self.state = State::OnDevice(run),
            None => {
                // The host has fetched nothing, also if it has seen all data come.
                (self.staged, self.next) = (Some(Staged::of(scene, shot)?), 0);
                self.publish(scene, shot);
                self.state = State::Waiting;
            }
        }
        Ok(())
    }

    /// Fails, and tells the others if they have no data of this rank.
    fn give_up(&mut self, scene: &Scene<'_>, shot: &OneShot, error: Error) {
        let lists = Lists::of(scene, shot);
        lists.lines(&self.turn).publish_failure(self.turn.words());
        self.state = State::Failing(error);
    }
}

/// Returns which of the default stream's work the kernel follows: that on memory of the call.
fn order(scene: &Scene<'_>, shot: &OneShot) -> Order {
    let devices = &scene.shared.pools.devices;
    let sent = shot.sent.blocks().iter().map(|block| (block.place, block.count));
    let received = shot.receives.iter().filter_map(|&(place, len)| Some((place?, len)));
    let output = shot.reduction.iter().map(|folded| {
        let size = scene.plan.combine.map_or(1, |combine| combine.element.size() as u64);
        (folded.output, folded.elements * size)
    });
    let of = |(place, len): (Place, u64)| match place {
        Place::User(address) if len != 0 => {
            let locate = || devices.classify(std::ptr::with_exposed_provenance(address), len as usize);
            devices.order(&scene.plan.known.find(address, len as usize).unwrap_or_else(locate))
        }
        _ => Order::None,
    };
    sent.chain(received).chain(output).map(of).fold(Order::None, Order::max)
}
