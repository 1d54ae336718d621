//! Messages that a service takes in the order of their arrival, without receives.

use std::sync::Arc;

use cableway_btl::SharedBytes;

use super::arrive::{note_taken, refuse};
use super::communicator::Communicator;
use super::engine::Engine;
use super::matching::{Batch, Taken};
use super::probe::Message;
use crate::abort::Abort;
use crate::core::{Done, flow};
use crate::protocol::{self, Content, UnexpectedMessage};
use crate::wire::Envelope;

/// Messages that a service has taken.
pub(crate) type Mail = Batch<UnexpectedMessage>;

impl Engine {
    /// Has messages with `tag` wait for a service, which takes them by [`take_mail`](Self::take_mail). No receive may fit
    /// them. A communicator has at most one such tag.
    pub(crate) fn open_inbox(&self, on: &Communicator, tag: i32) {
        on.matching.lock().matcher.open_inbox(tag);
    }

    /// Exchanges the messages that wait for an empty batch.
    #[inline]
    pub(crate) fn take_mail(&self, on: &Communicator, empty: &mut Mail) {
        on.matching.lock().matcher.take_inbox(empty);
    }

    /// Gives the sender of a whole message its credit back, once its bytes are not used any more.
    #[inline]
    pub(crate) fn note_handled(&self, on: &Communicator, source: u32, len: usize, done: &mut Done) {
        let Some(slot) = self.known(on.group()[source as usize]) else { return };
        let cost = flow::cost(true, len);
        slot.peer.stored.sub(cost);
        protocol::consume(self.core(), slot, cost, done);
    }

    /// Makes a message that can be kept of the bytes of a whole one.
    pub(crate) fn keep_whole(&self, on: &Arc<Communicator>, source: u32, tag: i32, bytes: &[u8]) -> Message {
        let envelope = Envelope { context: on.context(), epoch: on.member(source).epoch, tag, seq: 0 };
        let unexpected = UnexpectedMessage::new(envelope, Content::Eager, SharedBytes::from_private(bytes));
        self.keep_message(on, source, unexpected)
    }

    /// Makes a message that can be received, or dropped.
    pub(crate) fn keep_message(&self, on: &Arc<Communicator>, source: u32, unexpected: UnexpectedMessage) -> Message {
        self.taken(on, (source, unexpected.envelope.tag, unexpected))
    }

    /// Drops the messages of a batch: gives their senders their credit back, and aborts messages at senders that wait.
    pub(crate) fn refuse_mail(&self, on: &Communicator, mut mail: Mail, reason: Abort, done: &mut Done) {
        while let Some((source, taken)) = mail.pop() {
            match taken {
                Taken::Whole(bytes) => {
                    let len = bytes.len();
                    self.note_handled(on, source, len, done);
                }
                Taken::Other(kept) => {
                    if let Some(slot) = self.known(on.group()[source as usize]) {
                        note_taken(slot, &kept);
                        refuse(self, slot, &kept, reason, done);
                    }
                }
            }
        }
    }
}
