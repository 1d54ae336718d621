//! Passes a matched message to the protocols, which move it into its receive.

use cableway_btl::{Received, SharedBytes};

use super::engine::Engine;
use super::request::Receive;
use crate::core::{Done, flow};
use crate::protocol::{self, Content, Fin, Payload, Rendezvous, Slot, UnexpectedMessage};
use crate::status::Status;
use crate::wire::{Envelope, Id, MATCH_LEN};

/// A message within its upcall.
pub(super) struct Arrived<'m> {
    pub(super) envelope: Envelope,
    pub(super) content: Content,
    pub(super) message: &'m Received<'m>,
    pub(super) header_len: usize,
}

impl Arrived<'_> {
    #[inline]
    pub(super) fn payload(&self) -> SharedBytes<'_> {
        self.message.bytes().skip(self.header_len)
    }
}

/// Delivers an eager message within its upcall.
#[inline(always)]
pub(super) fn eager(
    engine: &Engine,
    slot: &Slot,
    (mut receive, source): (Receive, u32),
    tag: i32,
    message: &Received<'_>,
    done: &mut Done,
) {
    let payload = message.bytes().skip(MATCH_LEN);
    protocol::consume(engine.core(), slot, flow::cost(true, payload.len()), done);
    let status = Status { source: source as i32, tag, len: payload.len() as u64, cancelled: false };
    if receive.buffer().take_plain(payload) {
        receive.succeed(status, done);
    } else {
        let payload = Payload { message, header_len: MATCH_LEN };
        protocol::deliver((engine.core(), &engine.protocols.shared), receive.into_parts(), status, payload, done);
    }
}

/// Delivers a message within its upcall.
pub(super) fn arrived(
    engine: &Engine,
    slot: &Slot,
    (receive, source): (Receive, u32),
    arrived: &Arrived<'_>,
    done: &mut Done,
) {
    let payload = arrived.payload();
    let mut status =
        Status { source: source as i32, tag: arrived.envelope.tag, len: payload.len() as u64, cancelled: false };
    match &arrived.content {
        Content::Eager => protocol::consume(engine.core(), slot, flow::cost(true, payload.len()), done),
        Content::Announced(rendezvous) => {
            status.len = rendezvous.announced.len;
            if payload.is_empty() {
                return begin(engine, slot, receive, status, rendezvous, done);
            }
            protocol::consume(engine.core(), slot, flow::cost(false, payload.len()), done);
            confirm(engine, slot, rendezvous.announced.sender, done);
        }
    }
    let payload = Payload { message: arrived.message, header_len: arrived.header_len };
    protocol::deliver((engine.core(), &engine.protocols.shared), receive.into_parts(), status, payload, done);
}

/// Delivers an unexpected message.
pub(super) fn unexpected(
    engine: &Engine,
    slot: &Slot,
    (receive, source): (Receive, u32),
    unexpected: UnexpectedMessage,
    done: &mut Done,
) {
    let status =
        Status { source: source as i32, tag: unexpected.envelope.tag, len: unexpected.len(), cancelled: false };
    // The credit of a message whose data follows is returned once all of it has come.
    if unexpected.content.follows().is_none() {
        protocol::consume(engine.core(), slot, unexpected.cost(), done);
    }
    if let Content::Announced(rendezvous) = &unexpected.content {
        if unexpected.payload.is_empty() {
            return begin(engine, slot, receive, status, rendezvous, done);
        }
        confirm(engine, slot, rendezvous.announced.sender, done);
    }
    protocol::deliver_unexpected(
        (engine.core(), &engine.protocols.shared),
        receive.into_parts(),
        status,
        unexpected,
        done,
    );
}

fn begin(engine: &Engine, slot: &Slot, receive: Receive, status: Status, rendezvous: &Rendezvous, done: &mut Done) {
    let parts = receive.into_parts();
    engine.protocols.with(slot, done, |cx, channel| {
        protocol::begin_receive(cx, channel, parts, status, rendezvous);
    });
}

/// Sends a FIN to the sender of a matched message that came with its data.
fn confirm(engine: &Engine, slot: &Slot, sender: Id, done: &mut Done) {
    let fin = Fin { sender, result: Ok(()) };
    engine.protocols.with(slot, done, |_, channel| channel.links.send_control(&fin));
}
