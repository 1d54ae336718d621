//! Where an operation works, and its messages.

use cableway_base::Rank;
use cableway_pml::{Abort, Buffer, Communicator, Engine, Outcome, Request, SendMode};
use smallvec::SmallVec;

use super::shared::Collectives;
use super::tags;
use crate::error::Error;
use crate::placing::Working;
use crate::plan::{Block, Kind, Place, Plan};

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

/// A message under way. The engine knows the address of its request.
pub(super) struct Message {
    request: Box<Request>,
    /// Of a receive, its sender and the length of its message.
    expected: Option<(u32, u64)>,
}

impl Message {
    /// Checks whether it has ended, well or not.
    pub(super) fn is_complete(&self) -> bool {
        self.request.is_complete()
    }

    /// Returns the process whose failure made another one refuse the message.
    pub(super) fn told_of(&self) -> Option<Rank> {
        if self.is_complete() { self.request.result().err().and_then(|error| failed_member(&error)) } else { None }
    }

    /// Cancels a receive that no message has matched.
    pub(super) fn cancel(&self, engine: &Engine) {
        if self.expected.is_some() {
            // SAFETY: the request was started on this engine, and is valid.
            unsafe { engine.cancel(&raw const *self.request) };
        }
    }
}

/// Returns the process whose failure made another one refuse a message.
pub(super) fn failed_member(error: &cableway_pml::Error) -> Option<Rank> {
    match error {
        cableway_pml::Error::PeerAborted { reason: Abort::MemberFailed(failed), .. } => Some(*failed),
        _ => None,
    }
}

/// Checks whether messages have ended.
///
/// # Errors
/// One has failed, or has another length than it should.
pub(super) fn outcome(messages: &[Message]) -> Result<bool, Error> {
    if !messages.iter().all(Message::is_complete) {
        return Ok(false);
    }
    for message in messages {
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

impl Site {
    pub(super) fn send(
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

    pub(super) fn receive(
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

    pub(super) fn buffer<'p>(&self, plan: &'p Plan, block: &Block) -> Buffer<'p> {
        let address = self.address(block.place);
        let buffer = match block.kind {
            Kind::Bytes => Buffer::bytes(address, block.count),
            Kind::Typed(index) => Buffer::typed(address, block.count, &plan.types[index]),
        };
        let buffer = match (block.place, &self.working) {
            (Place::Scratch(_), Working::Host) => buffer.in_host(),
            _ => buffer,
        };
        if self.settled { buffer.settled() } else { buffer }
    }

    /// Returns the address and length of a block that is one run of bytes.
    pub(super) fn run(&self, plan: &Plan, block: &Block) -> Option<(*mut u8, u64)> {
        let address = self.address(block.place);
        match block.kind {
            Kind::Bytes => Some((address, block.count)),
            Kind::Typed(index) => {
                let (offset, len) = plan.types[index].contiguous_span(block.count)?;
                Some((address.wrapping_offset(offset as isize), len))
            }
        }
    }

    pub(super) fn address(&self, place: Place) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(match place {
            Place::User(address) => address,
            Place::Scratch(offset) => self.scratch.wrapping_add(offset as usize),
        })
    }
}
