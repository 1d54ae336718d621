//! Starts a send: by the fast path if possible, otherwise as a transfer.

use std::ptr::NonNull;

use cableway_btl::Sent;
use cableway_common_cuda::Location;

use super::communicator::Communicator;
use super::engine::Engine;
use super::request::Request;
use crate::buffer::Buffer;
use crate::core::{Done, flow};
use crate::error::Error;
use crate::protocol::{self, Outgoing};
use crate::status::{ANY, Outcome, PROC_NULL};
use crate::wire::{self, Envelope, MATCH_LEN};

/// Whether a message has left by the fast path ([`Engine::send_now`]).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// It has left, and its buffer can be reused.
    Sent,
    /// Nothing was sent. Holds the buffer's location if it was looked up, for [`isend_after`](Engine::isend_after) in
    /// the same call of the program.
    NotTaken(Option<Location>),
}

/// Sends by the fast path, which never fails: any unusual case is left unchanged to the slow path.
///
/// # Safety
/// The buffer is valid for reads.
#[inline(always)]
pub(super) unsafe fn leaves_at_once(
    engine: &Engine,
    to: &Communicator,
    dest: i32,
    tag: i32,
    buffer: Buffer<'_>,
) -> FastPath {
    const NOT_TAKEN: FastPath = FastPath::NotTaken(None);
    let Some(&process) = to.group().get(dest as usize) else { return NOT_TAKEN };
    let (Some(slot), Some((address, len))) = (engine.known(process), buffer.contiguous()) else { return NOT_TAKEN };
    if tag == ANY || !engine.core().is_open() || slot.peer.gone().is_some() {
        return NOT_TAKEN;
    }
    let cost = flow::cost(true, len as usize);
    let links = &mut slot.channel.lock().links;
    let Some(link) = links.active.first_mut() else { return NOT_TAKEN };
    let whole = wire::MATCH_LEN as u64 + len;
    let fits = whole <= link.capabilities().inline_limit as u64;
    // Peers with queued work are listed, and some others. New messages must not overtake queued ones.
    if !fits || links.listed || !links.credit.covers(cost) {
        return NOT_TAKEN;
    }
    let location = buffer.classify_run((address, len), engine.devices());
    let len = len as usize;
    if location.on_device() {
        return FastPath::NotTaken(Some(location));
    }
    let member = to.member(dest as u32);
    let seq = member.next_seq();
    let header = wire::match_bytes(&Envelope { context: to.context(), epoch: member.epoch, tag, seq });
    let payload = if len == 0 {
        &[]
    } else {
        // SAFETY: the caller promises that this host memory is valid for reads.
        unsafe { std::slice::from_raw_parts(address, len) }
    };
    // If a link fails, the slow path meets the error again and handles it.
    let sent = matches!(link.endpoint.send_inline(&header, payload), Ok(Sent::Done));
    if sent {
        link.carried = true;
        member.advance_seq(seq);
        links.credit.take(cost);
        slot.peer.counters.sends_eager.add_exclusively(1);
        slot.peer.counters.bytes_eager.add_exclusively(len as u64);
        return FastPath::Sent;
    }
    FastPath::NotTaken(Some(location))
}

/// Sends `begin` and `data`, which both lie in host memory, as one message by the fast path. The first [`MATCH_LEN`]
/// bytes of `begin` are room for a header. Returns false, as if it had not been called, if the message cannot leave so.
///
/// The steps are those of [`leaves_at_once`]. A function in common made ordinary messages 37 instructions longer.
#[inline(always)]
pub(super) fn parts_leave_at_once(
    engine: &Engine,
    to: &Communicator,
    dest: i32,
    tag: i32,
    begin: &mut [u8],
    data: &[u8],
) -> bool {
    let len = (begin.len() - MATCH_LEN + data.len()) as u64;
    let Some(&process) = to.group().get(dest as usize) else { return false };
    let Some(slot) = engine.known(process) else { return false };
    if tag == ANY || !engine.core().is_open() || slot.peer.gone().is_some() {
        return false;
    }
    let cost = flow::cost(true, len as usize);
    let links = &mut slot.channel.lock().links;
    let Some(link) = links.active.first_mut() else { return false };
    let fits = MATCH_LEN as u64 + len <= link.capabilities().inline_limit as u64;
    // As above.
    if !fits || links.listed || !links.credit.covers(cost) {
        return false;
    }
    let member = to.member(dest as u32);
    let seq = member.next_seq();
    let header = wire::match_bytes(&Envelope { context: to.context(), epoch: member.epoch, tag, seq });
    begin[..MATCH_LEN].copy_from_slice(&header);
    let sent = matches!(link.endpoint.send_inline(begin, data), Ok(Sent::Done));
    if sent {
        link.carried = true;
        member.advance_seq(seq);
        links.credit.take(cost);
        slot.peer.counters.sends_eager.add_exclusively(1);
        slot.peer.counters.bytes_eager.add_exclusively(len);
    }
    sent
}

/// Reports the error of a send that did not take the fast path. If the peer was only not connected yet, connects it and
/// sends.
///
/// # Safety
/// As [`leaves_at_once`].
#[inline(never)]
pub(super) unsafe fn meet_and_send(
    engine: &Engine,
    to: &Communicator,
    dest: i32,
    tag: i32,
    buffer: Buffer<'_>,
) -> Result<FastPath, Error> {
    if dest == PROC_NULL {
        return Ok(FastPath::Sent);
    }
    engine.core().check_open()?;
    let process = to.destination(dest, tag)?;
    let known = engine.known(process).is_some();
    engine.peer(process)?.peer.check()?;
    if known {
        return Ok(FastPath::NotTaken(None));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { leaves_at_once(engine, to, dest, tag, buffer) })
}

/// The arguments of [`start`], with the location of the buffer if it is known.
pub(super) struct SendArguments<'b> {
    pub(super) dest: i32,
    pub(super) tag: i32,
    pub(super) buffer: Buffer<'b>,
    pub(super) location: Option<Location>,
    pub(super) synchronous: bool,
}

/// Starts a send by the slow path, which any message can take.
///
/// # Safety
/// As [`Engine::isend_after`].
pub(super) unsafe fn start(
    engine: &Engine,
    to: &Communicator,
    SendArguments { dest, tag, buffer, location, synchronous }: SendArguments<'_>,
    request: *const Request,
) -> Result<Outcome, Error> {
    let core = engine.core();
    let process = to.destination(dest, tag)?;
    let slot = engine.peer(process)?;
    let location = location.unwrap_or_else(|| buffer.classify(&core.devices));
    buffer.packed_len()?;
    // SAFETY: the caller's promise lasts until the operation is complete, and the convertor is not used after that.
    let convertor = unsafe { buffer.convertor_to_send(location, &core.devices) };
    let Some(request) = NonNull::new(request.cast_mut()) else {
        return Err(Error::BadRequest { reason: "it is null" });
    };
    let begun = buffer.order();
    let mut done = Done::default();
    let outcome = engine.protocols.with(slot, &mut done, |cx, channel| {
        cx.peer.check()?;
        let member = to.member(dest as u32);
        let seq = member.next_seq();
        member.advance_seq(seq);
        let envelope = Envelope { context: to.context(), epoch: member.epoch, tag, seq };
        // SAFETY: the caller promises that the request is not active and stays valid.
        let request = unsafe { Request::activate(request) };
        let transfer = Outgoing::new(request, convertor, begun, envelope, synchronous);
        Ok(protocol::start_send(cx, channel, transfer))
    });
    if location.on_device() {
        engine.protocols.shared.copies.set_out(core);
    }
    done.run();
    outcome
}

/// Starts a standard send, by the fast or the slow path.
///
/// # Safety
/// As [`Engine::isend`].
pub(super) unsafe fn send(
    engine: &Engine,
    to: &Communicator,
    dest: i32,
    tag: i32,
    buffer: Buffer<'_>,
    request: *const Request,
) -> Result<Outcome, Error> {
    // SAFETY: the caller's promise.
    unsafe {
        match leaves_at_once(engine, to, dest, tag, buffer) {
            FastPath::Sent => Ok(Outcome::Complete),
            FastPath::NotTaken(location) => {
                engine.core().check_open()?;
                start(engine, to, SendArguments { dest, tag, buffer, location, synchronous: false }, request)
            }
        }
    }
}
