//! Invitations of posted receives: the hook of [`crate::protocol::invitation`] in matching.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use cableway_btl::Region;
use cableway_common_cuda::{Location, Order};

use super::communicator::Communicator;
use super::engine::Engine;
use super::matching::{Pattern, PostKey};
use super::request::Request;
use crate::buffer::Buffer;
use crate::core::Done;
use crate::protocol::Slot;
use crate::protocol::invitation::{self, Expected, ReceiveKey};
use crate::wire::Envelope;

/// Prepares an invitation before a receive in device memory is posted: returns the value that [`invite`] needs.
#[inline]
pub(super) fn expect(engine: &Engine, on: &Communicator, source: i32, request: NonNull<Request>) -> Option<Expected> {
    invitation::expect(engine.core(), sender(engine, on, source)?, request.cast())
}

/// Invites the sender of message `seq` after a receive in device memory was posted for it, if that pays.
///
/// # Safety
/// The buffer belongs to the receive, and nothing else accesses it until the receive completes.
pub(super) unsafe fn invite(
    engine: &Engine,
    on: &Communicator,
    (pattern, key, expected): (Pattern, PostKey, Expected),
    seq: Option<u32>,
    (buffer, location): (Buffer<'_>, Location),
) -> bool {
    let Some(slot) = sender(engine, on, pattern.source) else { return false };
    let epoch = on.member(pattern.source.cast_unsigned()).epoch;
    let message = seq.map(|seq| Envelope { context: on.context(), epoch, tag: pattern.tag, seq });
    let region = buffer.contiguous().and_then(|(address, len)| {
        Some(Region { address, len: usize::try_from(len).ok()?, location, order: Order::None })
    });
    // SAFETY: the caller's promise.
    unsafe { invitation::invite(engine.core(), slot, (message, receive_key(key), expected), region) }
}

/// Withdraws an invitation before its receive is cancelled. Returns false if the peer has claimed it, so that the
/// receive cannot be cancelled.
pub(super) fn may_cancel(engine: &Engine, request: &Request) -> bool {
    let of = (request.context().load(Relaxed), receive_key(request.posted()));
    let mut done = Done::default();
    let free =
        engine.protocols.peers.met().all(|slot| invitation::withdraw_before_cancel(engine.core(), slot, of, &mut done));
    done.run();
    free
}

/// Withdraws every invitation to a communicator's receives once no more are posted. A message that a peer already
/// stores by invitation is announced and gets its receive first.
pub(super) fn end(engine: &Engine, on: &Communicator) {
    for slot in engine.protocols.peers.met() {
        engine.wait_until(|| {
            let claimed = invitation::end(engine.core(), slot, on.context());
            // Do not wait longer for a peer that claims and then sends another message.
            let awaited = |ReceiveKey { node, number }| on.matching.lock().matcher.is_posted(PostKey { node, number });
            slot.peer.gone().is_some() || !claimed.is_some_and(awaited)
        });
    }
}

fn sender<'e>(engine: &'e Engine, on: &Communicator, source: i32) -> Option<&'e Slot> {
    let process = usize::try_from(source).ok().and_then(|source| on.group().get(source))?;
    engine.known(*process)
}

fn receive_key(PostKey { node, number }: PostKey) -> ReceiveKey {
    ReceiveKey { node, number }
}
