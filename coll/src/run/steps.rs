//! Single steps of a plan: messages, copies and reductions under way.

use cableway_common_cuda::{Completion, Order, Reduction, ReductionRun};
use cableway_pml::{Buffer, Communicator, Engine, Outcome, Request, SendMode};
use smallvec::SmallVec;

use super::copies::{self, Terms};
use super::shared::Collectives;
use super::tags;
use crate::error::Error;
use crate::placing::Working;
use crate::plan::{Block, Combine, Kind, Place, Plan, StepId, Work};
use crate::reduce;

/// Where an operation works.
#[derive(Clone, Copy)]
pub(super) struct Site {
    /// The address of the scratch memory.
    pub(super) scratch: usize,
    pub(super) working: Working,
    pub(super) first_tag: i32,
    /// Messages and copies follow no default stream, because that may stand behind a stream that waits for them.
    pub(super) settled: bool,
    /// The scratch memory is host memory that the devices' drivers know.
    pub(super) registered: bool,
}

/// A step that was started.
pub(super) struct Active {
    pub(super) step: StepId,
    /// The messages under way. The engine knows their addresses.
    messages: SmallVec<[Message; 2]>,
    reduction: Option<ReductionRun>,
    copy: Option<Completion>,
}

struct Message {
    request: Box<Request>,
    /// Of a receive, its sender and the length of its message.
    expected: Option<(u32, u64)>,
}

impl Active {
    pub(super) fn new(step: StepId) -> Active {
        Active { step, messages: SmallVec::new(), reduction: None, copy: None }
    }

    /// Checks whether the step has ended.
    pub(super) fn poll(&mut self) -> Result<bool, Error> {
        if let Some(reduction) = &mut self.reduction {
            return Ok(reduction.poll()?);
        }
        if let Some(copy) = &mut self.copy {
            return Ok(copy.poll()?);
        }
        if !self.has_ended() {
            return Ok(false);
        }
        for message in &self.messages {
            let sent = match message.request.result() {
                Ok(status) => status.len,
                Err(cableway_pml::Error::Truncated { sent, .. }) => sent,
                Err(error) => return Err(error.into()),
            };
            if let Some((rank, expected)) = message.expected.filter(|&(_, expected)| expected != sent) {
                return Err(Error::OtherLength { rank, sent, expected });
            }
        }
        Ok(true)
    }

    /// Checks whether all messages of the step have ended, well or not.
    fn has_ended(&self) -> bool {
        self.messages.iter().all(|message| message.request.is_complete())
    }

    pub(super) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Checks whether a device works on the step.
    pub(super) fn is_on_device(&self) -> bool {
        self.reduction.is_some() || self.copy.is_some()
    }

    /// After a failure, checks whether nobody uses memory for this step any more.
    pub(super) fn is_over(&mut self) -> bool {
        match (&mut self.reduction, &mut self.copy) {
            (Some(reduction), _) => !matches!(reduction.poll(), Ok(false)),
            (None, Some(copy)) => !matches!(copy.poll(), Ok(false)),
            (None, None) => self.has_ended(),
        }
    }

    /// Cancels receives that no message has matched.
    pub(super) fn cancel(&self, engine: &Engine) {
        for message in self.messages.iter().filter(|message| message.expected.is_some()) {
            // SAFETY: the request was started on this engine, and is valid.
            unsafe { engine.cancel(&raw const *message.request) };
        }
    }

    /// Exchanges a message without data in place of that of a step that will not be executed. So no other process waits
    /// for it for ever, and those that receive from this one learn of the failure.
    pub(super) fn exchange_nothing(
        shared: &Collectives,
        on: &Communicator,
        site: Site,
        (step, work): (StepId, &Work),
    ) -> Option<Active> {
        let mut active = Active::new(step);
        let messages = &mut active.messages;
        // An error here means that the other process is gone.
        let _ = match work {
            Work::Send { to, message, .. } => site.send(shared, on, (*to, *message), Buffer::EMPTY, messages),
            Work::Receive { from, message, .. } => site.receive(shared, on, (*from, *message), Buffer::EMPTY, messages),
            Work::Copy { .. } | Work::Reduce { .. } | Work::Fold { .. } => Ok(()),
        };
        (!active.messages.is_empty()).then_some(active)
    }
}

impl Site {
    /// Starts a step. After an error, messages of the step may be under way.
    pub(super) fn start(
        &self,
        shared: &Collectives,
        on: &Communicator,
        plan: &Plan,
        started: &mut Active,
    ) -> Result<(), Error> {
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
                let sources: SmallVec<[*const u8; 4]> =
                    sources.iter().map(|&source| self.address(source).cast_const()).collect();
                if let Some(combine) = plan.combine {
                    let destination = self.address(*destination);
                    started.reduction = self.reduce(shared, combine, destination, &sources, *elements)?;
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
        }
        Ok(())
    }

    fn send(
        &self,
        shared: &Collectives,
        on: &Communicator,
        (to, message): (u32, u32),
        buffer: Buffer<'_>,
        messages: &mut SmallVec<[Message; 2]>,
    ) -> Result<(), Error> {
        let request = Box::new(Request::new());
        let tag = tags::of_message(self.first_tag, message);
        // SAFETY: the program keeps the memory of the call, and the operation its scratch memory and the request, until
        // the request is complete.
        let outcome =
            unsafe { shared.engine.isend(on, to as i32, tag, buffer, &SendMode::Standard, &raw const *request) }?;
        if outcome == Outcome::Started {
            messages.push(Message { request, expected: None });
        }
        Ok(())
    }

    fn receive(
        &self,
        shared: &Collectives,
        on: &Communicator,
        (from, message): (u32, u32),
        buffer: Buffer<'_>,
        messages: &mut SmallVec<[Message; 2]>,
    ) -> Result<(), Error> {
        let request = Box::new(Request::new());
        let tag = tags::of_message(self.first_tag, message);
        // SAFETY: as for sends.
        unsafe { shared.engine.irecv(on, from as i32, tag, buffer, &raw const *request) }?;
        messages.push(Message { request, expected: Some((from, buffer.len())) });
        Ok(())
    }

    /// Starts a reduction by the device, or makes it by the host.
    fn reduce(
        &self,
        shared: &Collectives,
        combine: Combine,
        destination: *mut u8,
        sources: &[*const u8],
        elements: u64,
    ) -> Result<Option<ReductionRun>, Error> {
        let Combine { operation, element } = combine;
        let Working::Device(at) = &self.working else {
            // SAFETY: the plan's places hold the elements, and are in host memory that no message accesses now.
            unsafe { reduce::on_host(combine, destination, sources, elements as usize) };
            return Ok(None);
        };
        let reduction = Reduction { operation, element, count: elements, destination, sources };
        // SAFETY: as above, in memory of the device, until the step has ended.
        match unsafe { shared.pools.devices.reduce(at, Order::AfterDefaultStream, &reduction) }? {
            Some(run) => Ok(Some(run)),
            None => {
                // SAFETY: as above.
                unsafe {
                    reduce::through_host(&shared.pools.devices, combine, destination, sources, elements as usize)
                }?;
                Ok(None)
            }
        }
    }

    fn buffer<'p>(&self, plan: &'p Plan, block: &Block) -> Buffer<'p> {
        let address = self.address(block.place);
        let buffer = match block.kind {
            Kind::Bytes => Buffer::bytes(address, block.count),
            Kind::Typed(index) => Buffer::typed(address, block.count, &plan.types[index]),
        };
        if self.settled { buffer.settled() } else { buffer }
    }

    /// Returns the address and length of a block that is one run of bytes.
    fn run(&self, plan: &Plan, block: &Block) -> Option<(*mut u8, u64)> {
        let address = self.address(block.place);
        match block.kind {
            Kind::Bytes => Some((address, block.count)),
            Kind::Typed(index) => {
                let (offset, len) = plan.types[index].contiguous_span(block.count)?;
                Some((address.wrapping_offset(offset as isize), len))
            }
        }
    }

    fn address(&self, place: Place) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(match place {
            Place::User(address) => address,
            Place::Scratch(offset) => self.scratch.wrapping_add(offset as usize),
        })
    }
}
