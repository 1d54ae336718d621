//! Single steps of a plan: messages, copies, reductions and exchanges under way.

use cableway_base::Rank;
use cableway_common_cuda::{Completion, KernelRun, Order, Reduction};
use cableway_pml::{Buffer, Engine};
use smallvec::SmallVec;

use super::copies::{self, Terms};
use super::exchange::{self, Exchanging};
use super::one_shot::OneShotRun;
use super::scene::Scene;
use super::site::{Message, Site, outcome};
use crate::error::Error;
use crate::placing::Working;
use crate::plan::exchange::Exchange;
use crate::plan::{Combine, Place, StepId, Work};
use crate::reduce;

/// A step that was started.
pub(super) struct Active {
    pub(super) step: StepId,
    /// The messages under way. The engine knows their addresses.
    messages: SmallVec<[Message; 2]>,
    reduction: Option<KernelRun>,
    copy: Option<Completion>,
    exchange: Option<Box<Exchanging>>,
    one_shot: Option<Box<OneShotRun>>,
}

impl<'s> Scene<'s> {
    fn of_exchange(&self, of: &'s Exchange) -> exchange::Scene<'s> {
        let &Scene { shared, on, site, plan, .. } = self;
        exchange::Scene { shared, on, site, plan, exchange: of }
    }
}

impl Active {
    pub(super) fn new(step: StepId) -> Active {
        Active { step, messages: SmallVec::new(), reduction: None, copy: None, exchange: None, one_shot: None }
    }

    /// Checks whether the step has ended.
    pub(super) fn poll(&mut self, scene: &Scene<'_>) -> Result<bool, Error> {
        if let Some(reduction) = &mut self.reduction {
            return Ok(reduction.poll()?);
        }
        if let Some(copy) = &mut self.copy {
            return Ok(copy.poll()?);
        }
        if let (Some(exchange), Work::Exchange(of)) = (&mut self.exchange, &scene.plan.steps[self.step as usize].work) {
            return exchange.poll(&scene.of_exchange(of));
        }
        if let (Some(one_shot), Work::OneShot(of)) = (&mut self.one_shot, &scene.plan.steps[self.step as usize].work) {
            return one_shot.poll(scene, of);
        }
        outcome(&self.messages)
    }

    /// Checks whether all messages of the step have ended, well or not.
    fn has_ended(&self) -> bool {
        self.messages.iter().all(Message::is_complete)
    }

    /// Checks whether other processes take part in the step.
    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty() || self.exchange.is_some() || self.one_shot.is_some()
    }

    /// Checks whether a device works on the step.
    pub(super) fn is_on_device(&self) -> bool {
        self.reduction.is_some()
            || self.copy.is_some()
            || self.exchange.as_ref().is_some_and(|exchange| exchange.is_on_device())
            || self.one_shot.as_ref().is_some_and(|one_shot| one_shot.needs_polls())
    }

    /// After a failure, checks whether nobody uses memory for this step any more.
    pub(super) fn is_over(&mut self, scene: &Scene<'_>) -> bool {
        if self.exchange.is_some() || self.one_shot.is_some() {
            return !matches!(self.poll(scene), Ok(false));
        }
        match (&mut self.reduction, &mut self.copy) {
            (Some(reduction), _) => !matches!(reduction.poll(), Ok(false)),
            (None, Some(copy)) => !matches!(copy.poll(), Ok(false)),
            (None, None) => self.has_ended(),
        }
    }

    /// Has an exchange fail together with the operation.
    pub(super) fn fail(&mut self, scene: &Scene<'_>, error: &Error) {
        if let Some(exchange) = &mut self.exchange {
            exchange.fail(error);
        }
        if let (Some(one_shot), Work::OneShot(of)) = (&mut self.one_shot, &scene.plan.steps[self.step as usize].work) {
            one_shot.fail(scene, of, error);
        }
    }

    /// Returns a process whose failure made another one refuse a message.
    pub(super) fn told_of(&self) -> Option<Rank> {
        let exchanged = || self.exchange.as_ref().and_then(|exchange| exchange.told_of());
        self.messages.iter().find_map(Message::told_of).or_else(exchanged)
    }

    /// Cancels receives that no message has matched.
    pub(super) fn cancel(&self, engine: &Engine) {
        self.messages.iter().for_each(|message| message.cancel(engine));
        self.exchange.iter().for_each(|exchange| exchange.cancel(engine));
    }

    /// Exchanges a message without data in place of that of a step that will not be executed. So no other process waits
    /// for it for ever, and those that receive from this one learn of the failure.
    pub(super) fn exchange_nothing(scene: &Scene<'_>, step: StepId, error: &Error) -> Option<Active> {
        let &Scene { shared, on, site, plan, turn } = scene;
        let mut active = Active::new(step);
        let messages = &mut active.messages;
        let work = &plan.steps[step as usize].work;
        if let Work::Exchange(of) = work {
            active.exchange = Some(Box::new(Exchanging::new(&scene.of_exchange(of), Some(error.clone()))));
            return Some(active);
        }
        if let Work::OneShot(of) = work {
            active.one_shot = turn.map(|turn| Box::new(OneShotRun::failed(scene, turn.clone(), of, error.clone())));
            return active.one_shot.is_some().then_some(active);
        }
        // An error here means that the other process is gone.
        let _ = match work {
            Work::Send { to, message, .. } => site.send(shared, on, (*to, *message), Buffer::EMPTY, messages),
            Work::Receive { from, message, .. } => site.receive(shared, on, (*from, *message), Buffer::EMPTY, messages),
            Work::Copy { .. } | Work::Reduce { .. } | Work::Fold { .. } | Work::Exchange(_) | Work::OneShot(_) => {
                Ok(())
            }
        };
        (!active.messages.is_empty()).then_some(active)
    }
}

impl Site {
    /// Starts a step. After an error, messages of the step may be under way.
    pub(super) fn start(&self, scene: &Scene<'_>, started: &mut Active) -> Result<(), Error> {
        let &Scene { shared, on, plan, .. } = scene;
        let id = started.step;
        let messages = &mut started.messages;
        match &plan.steps[id as usize].work {
            Work::Send { to, message, block } => {
                self.send(shared, on, (*to, *message), self.buffer(plan, block), messages)?
            }
            Work::Receive { from, message, block } => {
                self.receive(shared, on, (*from, *message), self.buffer(plan, block), messages)?;
            }
            Work::Copy { from, to } => {
                let (to_run, from_run) = (self.run(plan, to), self.run(plan, from));
                let scratch = [to, from].iter().any(|block| matches!(block.place, Place::Scratch(_)));
                if let (Some(to), Some(from)) = (to_run, from_run) {
                    let terms = Terms { settled: self.settled, registered: self.registered && scratch };
                    // SAFETY: the plan's blocks lie in memory that no other step accesses now, and have one length.
                    if let Some(copy) = unsafe { copies::start(&shared.pools.devices, to, from, terms) }? {
                        started.copy = Some(copy);
                        return Ok(());
                    }
                }
                // A message to this process copies between any two kinds of memory and types.
                let me = on.rank();
                self.receive(shared, on, (me, id), self.buffer(plan, to), messages)?;
                self.send(shared, on, (me, id), self.buffer(plan, from), messages)?;
            }
            Work::Reduce { destination, sources, elements } => {
                if let Some(combine) = plan.combine {
                    started.reduction = self.reduce(scene, combine, *destination, sources, *elements)?;
                }
            }
            Work::Fold { slots, elements } => {
                for pair in slots.windows(2) {
                    let (input, inout) = (self.address(pair[0]), self.address(pair[1]));
                    if let Some(function) = plan.function {
                        // SAFETY: the slots are apart, hold the elements, and are in host memory that no message accesses
                        // now.
                        unsafe { function.apply(input, inout, *elements) };
                    }
                }
            }
            Work::OneShot(of) => {
                started.one_shot = scene.turn.map(|turn| Box::new(OneShotRun::new(scene, turn.clone(), of)));
            }
            Work::Exchange(of) => {
                let exchange = started.exchange.insert(Box::new(Exchanging::new(&scene.of_exchange(of), None)));
                // A rank that was refused before the receives were posted believes that this one does not take its offer.
                if let Err(error) = shared.engine.check_members(on) {
                    exchange.fail(&error.into());
                }
            }
        }
        Ok(())
    }

    /// Starts a reduction by the device, or makes it by the host.
    fn reduce(
        &self,
        scene: &Scene<'_>,
        combine: Combine,
        to: Place,
        from: &[Place],
        elements: u64,
    ) -> Result<Option<KernelRun>, Error> {
        let destination = self.address(to);
        let sources: SmallVec<[*const u8; 4]> = from.iter().map(|&place| self.address(place).cast_const()).collect();
        let Combine { operation, element } = combine;
        let Working::Device(at) = &self.working else {
            // SAFETY: the plan's places hold the elements, and are in host memory that no message accesses now.
            unsafe { reduce::on_host(combine, destination, &sources, elements as usize) };
            return Ok(None);
        };
        let destinations = [destination];
        let reduction = Reduction {
            operation,
            element,
            count: elements,
            destinations: &destinations,
            sources: &sources,
            kept: None,
        };
        let devices = &scene.shared.pools.devices;
        let len = elements as usize * element.size();
        let order_of = |place: &Place| match *place {
            Place::Scratch(_) => Order::None,
            Place::User(address) => {
                let locate = || devices.classify(std::ptr::with_exposed_provenance(address), len);
                devices.order(&scene.plan.known.find(address, len).unwrap_or_else(locate))
            }
        };
        let order = from.iter().map(order_of).fold(order_of(&to), Order::max);
        // SAFETY: as above, in memory of the device, until the step has ended.
        match unsafe { devices.reduce(at, order, &reduction) }? {
            Some(run) => Ok(Some(run)),
            None => {
                // SAFETY: as above.
                unsafe { reduce::through_host(devices, combine, destination, &sources, elements as usize) }?;
                Ok(None)
            }
        }
    }
}
