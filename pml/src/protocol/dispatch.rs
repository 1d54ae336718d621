//! The protocols of an engine: dispatches headers, completions and copies to the transfers of its peers.

use std::sync::atomic::Ordering::Relaxed;

use cableway_base::lock::Locking;
use cableway_btl::{Error as BtlError, MIN_MESSAGE, Received};
use cableway_common_cuda::DeviceError;

use super::context::{AfterCopy, Context, Operation, Shared, Step};
use super::fragments::{Ack, FRAGMENT_LEN, FragmentHeader};
use super::host_costs::Kept;
use super::put::{Put, PutFin};
use super::rendezvous::{AbortHeader, Fin};
use super::scratch::Scratches;
use super::transfer::{Channel, Slot, State};
use super::{
    direct, eager, eager_fragments, fragments, get, halves, node, offered, pieces, put, rendezvous, settle, start,
};
use crate::core::{Config, Copies, Core, CreditHeader, Done, Peers, Resume, failover};
use crate::error::Error;
use crate::wire::{Header, Malformed, NodeCard, Reader, Several, kind, parse_batch};

pub(crate) struct Protocols {
    pub(crate) core: Core,
    pub(crate) shared: Shared,
    pub(crate) peers: Peers<State>,
}

impl Protocols {
    pub(crate) fn new(config: Config, locking: Locking) -> Result<Self, Error> {
        let core = Core::new(config, locking)?;
        let copies = Copies::new(locking, core.parameters.device_batch_size);
        let scratch = Scratches::new(core.parameters.device_scratch_size);
        let peers = Peers::new(core.modex.job().size as usize);
        let kept = Kept::new(&core.parameters);
        let btls = core.btls.iter().map(|slot| &*slot.btl);
        let card = node::card(&core.parameters, &kept, btls, core.modex.job().rank);
        core.modex.put(NodeCard::KEY, &card.to_bytes())?;
        Ok(Protocols { core, shared: Shared { copies, scratch, kept }, peers })
    }

    /// Keeps measured costs for the next jobs.
    pub(crate) fn keep_costs(&self) {
        self.shared.kept.save();
    }

    /// Runs `act` with the peer's channel. Progress handles what it leaves behind.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        slot: &Slot,
        done: &mut Done,
        act: impl FnOnce(&mut Context<'_>, &mut Channel) -> R,
    ) -> R {
        let (core, shared, peer) = (&self.core, &self.shared, &slot.peer);
        slot.with(core, done, |channel, done| act(&mut Context { core, shared, peer, done }, channel))
    }

    fn context<'c>(&'c self, slot: &'c Slot, done: &'c mut Done) -> Context<'c> {
        Context { core: &self.core, shared: &self.shared, peer: &slot.peer, done }
    }

    /// Handles a message with a header for a transfer or for the core.
    pub(crate) fn handle(
        &self,
        slot: &Slot,
        message: &Received<'_>,
        reader: &Reader<'_>,
        done: &mut Done,
    ) -> Result<(), Malformed> {
        self.with(slot, done, |cx, channel| match reader.kind {
            kind::ACK => {
                let ack = Ack::parse(reader)?;
                match offered::claim(channel, ack.sender, ack.offer) {
                    true => fragments::asked(cx, channel, &ack),
                    false => Ok(()),
                }
            }
            kind::PUT => {
                let put = Put::parse(reader)?;
                match offered::claim(channel, put.sender, put.offer) {
                    true => put::asked(cx, channel, &put),
                    false => Ok(()),
                }
            }
            kind::FRAGMENT => {
                let header = FragmentHeader::parse(reader)?;
                if header.unasked {
                    return eager_fragments::arrived(cx, channel, header, message);
                }
                let (receiver, len) = (header.transfer, (message.bytes().len() - FRAGMENT_LEN) as u64);
                if !offered::was_claimed(channel, receiver, header.offset, len) {
                    return Err(Malformed::OutOfTurn { what: "a fragment", id: receiver.0 });
                }
                fragments::arrived(cx, channel, (receiver, header.offset, len), message)?;
                pieces::ask_for_refused(channel, receiver);
                settle::receive(cx, channel, receiver);
                // The queue may have space for more offers.
                get::advance(cx, channel);
                Ok(())
            }
            kind::FIN => rendezvous::fin(cx, channel, Fin::parse(reader)?, false),
            kind::PUT_FIN => {
                let fin = PutFin::parse(reader)?;
                match halves::are_stored(channel, fin.receiver) {
                    true => halves::fin(cx, channel, fin),
                    false => put::fin(cx, channel, fin),
                }
            }
            kind::CREDIT => channel.links.credit.consumed(CreditHeader::parse(reader)?.consumed),
            kind::RESUME => failover::resumed(cx.core, cx.peer, channel, Resume::parse(reader)?),
            kind::ABORT => rendezvous::aborted(cx, channel, AbortHeader::parse(reader)?),
            unknown => Err(Malformed::Kind(unknown)),
        })
    }

    /// Handles a message of several headers.
    pub(crate) fn handle_several(&self, slot: &Slot, message: &Received<'_>, done: &mut Done) -> Result<(), Malformed> {
        let mut bytes = [0; MIN_MESSAGE];
        if message.bytes().len() > bytes.len() {
            return Err(Malformed::TooLong(message.bytes().len()));
        }
        let count = message.bytes().copy_to(&mut bytes);
        let several = parse_batch(&bytes[..count])?;
        self.with(slot, done, |cx, channel| match several {
            Several::Puts(mut puts) => put::asked_for_several(cx, channel, &mut puts),
            Several::PutFins(fins) => fins.iter().try_for_each(|(receiver, len)| {
                put::fin(cx, channel, PutFin { receiver, offset: 0, len, result: Ok(()) })
            }),
            Several::Fins(fins) => {
                fins.iter().try_for_each(|sender| rendezvous::fin(cx, channel, Fin { sender, result: Ok(()) }, true))
            }
        })
    }

    /// Counts a peer's messages, except eager ones.
    pub(crate) fn note_heard(&self, slot: &Slot) {
        slot.peer.heard.store(slot.peer.heard.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Handles the end of an operation of a link.
    pub(crate) fn completed(
        &self,
        slot: &Slot,
        channel: &mut Channel,
        operation: Operation,
        result: Result<(), BtlError>,
        done: &mut Done,
    ) {
        let cx = &mut self.context(slot, done);
        match operation {
            Operation::SendMessage(id) => fragments::left_in_place(cx, channel, (id, None), result),
            Operation::SendFragment(id, len) => fragments::left_in_place(cx, channel, (id, Some(len)), result),
            Operation::Get { id, offset, len } => get::completed(cx, channel, (id, offset, len), result),
            Operation::Put(job) => put::completed(cx, channel, job, result),
            Operation::PutWhole { id, receiver, len } => {
                put::whole_completed(cx, channel, (id, receiver, len), result.is_ok());
            }
            Operation::Direct(job) => direct::completed(cx, channel, job, result),
        }
    }

    /// Continues what waited for the peer's links. Returns how much left.
    pub(crate) fn advance(&self, slot: &Slot, channel: &mut Channel, done: &mut Done) -> usize {
        let cx = &mut self.context(slot, done);
        start::advance(cx, channel)
            + fragments::advance(cx, channel)
            + put::advance(cx, channel)
            + direct::advance(cx, channel)
            + offered::watch(cx, channel)
            + get::advance(cx, channel)
    }

    /// Ends the transfers of a peer that is gone.
    pub(crate) fn abandon(&self, slot: &Slot, channel: &mut Channel, done: &mut Done) {
        let cx = &mut self.context(slot, done);
        settle::abandon(cx, channel);
        direct::abandon(cx, channel);
    }

    /// See [`Host::poll_copies`](crate::core::Host::poll_copies).
    #[cold]
    pub(crate) fn poll_copies(&self) -> usize {
        let ended = self.shared.copies.take_ended(&self.core);
        let count = ended.len();
        if count == 0 {
            return 0;
        }
        let mut done = Done::gathering();
        for (then, result) in ended {
            self.copied(then, result, &mut done);
        }
        self.shared.copies.followed(&self.core, count);
        done.run();
        count
    }

    fn copied(&self, then: AfterCopy, result: Result<(), DeviceError>, done: &mut Done) {
        let (peer, id, step) = match then {
            AfterCopy::Transfer { peer, id, step } => (peer, id, step),
            AfterCopy::Received { request, status, truncated, address, source } => {
                drop(source);
                let failed = result.err().map(|source| Error::Device { address, len: status.len, source });
                return request.complete(status, failed.or(truncated), done);
            }
        };
        let Some(slot) = self.peers.known(peer) else { return };
        self.with(slot, done, |cx, channel| match step {
            Step::SendMessage { link, fragment, len } => {
                eager::message_copied(cx, channel, (id, link), (fragment, len), result);
            }
            Step::SendFragment { link, fragment, len } => {
                fragments::copied(cx, channel, (id, link), (fragment, len), result);
            }
            Step::Announce => start::ordered(cx, channel, id, result),
            Step::Move => rendezvous::ordered(cx, channel, id, result),
            Step::Arrived { bytes, source } => {
                fragments::copied_in(cx, channel, (id, bytes), result);
                drop(source);
            }
            Step::Unpacked { lane, bytes } => pieces::unpacked(cx, channel, (id, lane, bytes), result),
        });
    }
}
