//! Single steps of a plan: messages, copies and reductions under way.

use cableway_common_cuda::{Order, Reduction, ReductionRun};
use cableway_pml::{Buffer, Communicator, Engine, Outcome, Request, SendMode};
use smallvec::SmallVec;

use super::{Collectives, tags};
use crate::error::Error;
use crate::placing::Working;
use crate::plan::{Block, Combine, Kind, Place, Plan, StepId, Work};
use crate::reduce;

/// Where an operation works.
pub(super) struct Site {
    /// The address of the scratch memory.
    pub(super) scratch: usize,
    pub(super) working: Working,
    pub(super) first_tag: i32,
}

/// A step that was started.
pub(super) struct Active {
    pub(super) step: StepId,
    /// The messages under way. The engine knows their addresses.
    messages: SmallVec<[Message; 2]>,
    reduction: Option<ReductionRun>,
}

struct Message {
    request: Box<Request>,
    is_receive: bool,
}

impl Active {
    pub(super) fn new(step: StepId) -> Active {
        Active { step, messages: SmallVec::new(), reduction: None }
    }

    /// Checks whether the step has ended.
    pub(super) fn poll(&mut self) -> Result<bool, Error> {
        if let Some(reduction) = &mut self.reduction {
            return Ok(reduction.poll()?);
        }
        if !self.messages.iter().all(|message| message.request.is_complete()) {
            return Ok(false);
        }
        for message in &self.messages {
            message.request.result()?;
        }
        Ok(true)
    }

    pub(super) fn is_reduction(&self) -> bool {
        self.reduction.is_some()
    }

    /// Cancels receives that no message has matched.
    pub(super) fn cancel(&self, engine: &Engine) {
        for message in self.messages.iter().filter(|message| message.is_receive) {
            // SAFETY: the request was started on this engine, and is valid.
            unsafe { engine.cancel(&raw const *message.request) };
        }
    }

    /// Checks whether, after a failure, nothing writes to memory for this step any more.
    pub(super) fn may_be_left(&self) -> bool {
        self.reduction.is_none()
            && self.messages.iter().all(|message| !message.is_receive || message.request.is_complete())
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
            messages.push(Message { request, is_receive: false });
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
        messages.push(Message { request, is_receive: true });
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
        match unsafe { shared.devices.reduce(at, Order::AfterDefaultStream, &reduction) }? {
            Some(run) => Ok(Some(run)),
            None => {
                // SAFETY: as above.
                unsafe { reduce::through_host(&shared.devices, combine, destination, sources, elements as usize) }?;
                Ok(None)
            }
        }
    }

    fn buffer<'p>(&self, plan: &'p Plan, block: &Block) -> Buffer<'p> {
        let address = self.address(block.place);
        match block.kind {
            Kind::Bytes => Buffer::bytes(address, block.count),
            Kind::Typed(index) => Buffer::typed(address, block.count, &plan.types[index]),
        }
    }

    fn address(&self, place: Place) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(match place {
            Place::User(address) => address,
            Place::Scratch(offset) => self.scratch + offset as usize,
        })
    }
}
