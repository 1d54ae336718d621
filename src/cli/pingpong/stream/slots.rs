//! Checked messages: each step of a round has memory of its own for what it sends and what it received. Copies take it to
//! the memory of the messages and back, between the messages in the stream.

use cableway::Lent;

use super::driver::ProgramStream;
use crate::cli::Failure;
use crate::cli::pingpong::side::Side;

/// The slots of a round.
pub(super) struct Slots {
    /// The first slots of what is sent and of what was received, and the bytes of a slot.
    out: *mut u8,
    inbox: *mut u8,
    span: usize,
    /// A round has one step, and the host copies before and after it.
    by_host: bool,
}

impl Side<'_> {
    /// Returns the slots of messages of this size. Their users copy only while this rank's memory is as it was.
    pub(super) fn slots(&self, size: u64, by_host: bool) -> Slots {
        let (out, span) = self.out.place(0, size);
        Slots { out, inbox: self.inbox.place(0, size).0, span, by_host }
    }
}

impl Slots {
    /// Takes what `slot` sends to the message's memory.
    pub(super) fn sending(&self, slot: u32, out: &Lent<'_>, program: &ProgramStream) -> Result<(), Failure> {
        let (from, to) = (self.out.wrapping_add(slot as usize * self.span), out.as_ptr().cast::<u8>());
        if self.by_host {
            // SAFETY: both are host memory of this length. The stream does not use it: the round's send comes later.
            unsafe { std::ptr::copy_nonoverlapping(from, to, self.span) };
            return Ok(());
        }
        // SAFETY: both have this length, and live until the stream has passed the round.
        unsafe { program.copy(to, from, self.span) }
    }

    /// Takes a received message to `slot`.
    pub(super) fn received(&self, slot: u32, inbox: &Lent<'_>, program: &ProgramStream) -> Result<(), Failure> {
        if self.by_host {
            return Ok(());
        }
        let to = self.inbox.wrapping_add(slot as usize * self.span);
        // SAFETY: as in `sending`.
        unsafe { program.copy(to, inbox.as_ptr().cast(), self.span) }
    }

    /// Takes the message of a round of one step to its slot, after the stream has passed the round.
    pub(super) fn received_by_host(&self, inbox: &Lent<'_>) {
        if self.by_host {
            // SAFETY: both are host memory of this length, which the stream does not use now.
            unsafe { std::ptr::copy_nonoverlapping(inbox.as_ptr().cast::<u8>(), self.inbox, self.span) };
        }
    }
}
