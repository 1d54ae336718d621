//! The steps of a rank on its stream.

use cableway::{Communicator, Lent, PreparedMessage, StreamScope};

use super::driver::ProgramStream;
use super::figures::Figures;
use super::slots::Slots;
use super::target::Target;
use crate::cli::Failure;

/// The tag of messages there and back.
pub(super) const DATA: i32 = 10;

/// The messages of each step.
pub(super) struct Messages<'s, 'scope, 'env> {
    pub(super) scope: &'scope StreamScope<'scope, 'env>,
    pub(super) on: &'s Communicator,
    pub(super) peer: u32,
    pub(super) out: &'s Lent<'scope>,
    pub(super) inbox: &'s Lent<'scope>,
    /// The send and the receive, if they are prepared.
    pub(super) prepared: Option<&'s [PreparedMessage<'scope>; 2]>,
    /// Where puts land, if messages are puts.
    pub(super) target: Option<&'scope Target>,
}

/// What a step consists of.
pub(super) struct Steps<'s, 'scope, 'env> {
    pub(super) messages: Messages<'s, 'scope, 'env>,
    pub(super) program: &'s ProgramStream,
    /// Present if messages are checked.
    pub(super) slots: Option<Slots>,
}

impl Steps<'_, '_, '_> {
    /// Adds a step: rank 0 sends, receives and runs the kernel, rank 1 receives, runs the kernel and sends.
    pub(super) fn step(&self, slot: u32, figures: &mut Figures) -> Result<(), Failure> {
        let first = self.messages.on.rank() == 0;
        if first {
            self.send(slot, figures)?;
        }
        self.receive(slot, figures)?;
        self.program.spin()?;
        if !first {
            self.send(slot, figures)?;
        }
        Ok(())
    }

    fn send(&self, slot: u32, figures: &mut Figures) -> Result<(), Failure> {
        let Messages { scope, on, peer, out, prepared, target, .. } = self.messages;
        if let Some(slots) = &self.slots {
            slots.sending(slot, out, self.program)?;
        }
        Ok(figures.send.time(slot, || match (prepared, target) {
            (Some([there, _]), _) => scope.post(&[there]),
            (None, Some(target)) => target.put(scope, out),
            (None, None) => scope.send(on, out, peer, DATA),
        })?)
    }

    fn receive(&self, slot: u32, figures: &mut Figures) -> Result<(), Failure> {
        let Messages { scope, on, peer, inbox, prepared, target, .. } = self.messages;
        figures.receive.time(slot, || match (prepared, target) {
            (Some([_, back]), _) => scope.post(&[back]),
            (None, Some(target)) => target.wait(scope),
            (None, None) => scope.recv(on, inbox, peer, DATA),
        })?;
        match &self.slots {
            Some(slots) => slots.received(slot, inbox, self.program),
            None => Ok(()),
        }
    }

    /// Does what the host does for checked messages after a round.
    pub(super) fn end_round(&self) {
        if let Some(slots) = &self.slots {
            slots.received_by_host(self.messages.inbox);
        }
    }
}
