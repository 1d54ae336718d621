//! A message to blocks that only this process's kernels find, from data that is not one run: the sender packs it into
//! scratch memory here, piece by piece, and each is unpacked from there while the next ones come.

use cableway_btl::{Access, Flags, Registration};
use cableway_common_cuda::{DeviceError, Direction, Order, Packing, Spread, Within};
use smallvec::SmallVec;

use super::ReceiveTransfer;
use crate::completion::Done;
use crate::copies::{Copying, Then};
use crate::engine::Engine;
use crate::error::Error;
use crate::links::{Links, Peer};
use crate::scratch::Slot;
use crate::wire::{BtlTag, Exposed, Header, HeaderBuffer, Id, Put};

/// Pieces of a message that are on their way at a time: while one is unpacked and the next are packed, one is asked for.
const DEPTH: usize = 4;

/// The pieces of one message.
pub(crate) struct Pieces {
    /// What the blocks are relative to, and the blocks.
    user: *mut u8,
    spread: Spread,
    /// Bytes that were asked for as pieces, or are to come in another way.
    next: u64,
    /// Ranges that could not be stored, and are to come as fragments.
    refused: Vec<(u64, u64)>,
    lanes: SmallVec<[Lane; DEPTH]>,
}

// SAFETY: the address is handed to devices, never dereferenced here; it is the transfer's, on whatever thread.
unsafe impl Send for Pieces {}

/// Scratch memory, and the piece that is in it.
struct Lane {
    /// Dropped before the slot that it is about.
    registration: Registration,
    slot: Slot,
    /// The link that it was registered with, as headers call it.
    via: (BtlTag, u8),
    holds: Holds,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// The sender was asked for so many bytes from this one on.
    Asked(u64, u64),
    /// They are here, and being unpacked.
    Unpacking,
}

impl Pieces {
    pub(crate) fn new((user, spread): (*mut u8, Spread)) -> Box<Self> {
        Box::new(Pieces { user, spread, next: 0, refused: Vec::new(), lanes: SmallVec::new() })
    }

    /// The lane whose piece that is.
    fn asked(&mut self, offset: u64, len: u64) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.holds == Holds::Asked(offset, len))
    }

    fn put_down(&mut self, lane: usize) {
        self.lanes[lane].slot.expose(false);
        self.lanes[lane].holds = Holds::Nothing;
    }
}

impl Engine {
    /// Asks for as many pieces as there is room for; where there is none at all, for fragments.
    pub(crate) fn ask_for_pieces(&self, links: &mut Links, id: Id) {
        // In the order in which it is said.
        links.send_gathered();
        let Links { active, receives, queues, .. } = links;
        let Some(transfer) = receives.get_mut(id) else { return };
        let (sender, wanted, at) = (transfer.sender, transfer.wanted, *transfer.convertor.location());
        let Some(pieces) = transfer.pieces.as_mut().filter(|_| transfer.failure.is_none() && !transfer.gone) else {
            return;
        };
        let flags = Flags::DEVICE_PUT | Flags::DEVICE_PACKED;
        // Copy engines take ever so long for short blocks: they are to have what is under way at most.
        let able = self.devices.packs_between(&at, &pieces.spread);
        while let Some(link) = active.iter_mut().find(|link| link.capabilities().flags.contains(flags))
            && able
            && pieces.next < wanted
        {
            let free = pieces.lanes.iter().position(|lane| lane.holds == Holds::Nothing);
            let lane = free.or_else(|| {
                let slot = (pieces.lanes.len() < DEPTH).then(|| self.scratch.take(&self.devices, &at)).flatten()?;
                // SAFETY: the slot is ours alone, and outlives the registration, which is dropped with the lane: what a
                // peer may be storing in is used by nobody else.
                let registration = unsafe { link.endpoint.register(slot.region(), Access::RemoteWrite) }.ok()??;
                pieces.lanes.push(Lane { registration, slot, via: (link.tag, link.ordinal), holds: Holds::Nothing });
                Some(pieces.lanes.len() - 1)
            });
            let Some(lane) = lane.and_then(|lane| pieces.lanes.get_mut(lane)) else { break };
            let (offset, len) = (pieces.next, (wanted - pieces.next).min(self.scratch.slot() as u64));
            let handle = *lane.registration.handle();
            lane.slot.expose(true);
            lane.holds = Holds::Asked(offset, len);
            pieces.next += len;
            transfer.asked += len;
            transfer.awaited += len;
            let (btl, ordinal) = lane.via;
            let to = Exposed { btl, ordinal, handle, blocks: None };
            let put = Put { sender, receiver: id, offset, len, total: wanted, to };
            queues.control.push_back(HeaderBuffer::new(&Header::Put(put)).as_bytes().into());
        }
        if pieces.next < wanted && pieces.lanes.iter().all(|lane| lane.holds == Holds::Nothing) {
            // Others have all the room, no kernel is to be had, or no link is left that takes pieces.
            let rest = (std::mem::replace(&mut pieces.next, wanted), wanted);
            pieces.refused.push(rest);
            links.ask_for_refused(id);
        }
        links.flush_control();
    }

    /// Whether what the sender has stored, or could not store, is a piece; then it is dealt with.
    pub(super) fn piece_stored(&self, peer: &Peer, links: &mut Links, id: Id, piece: (u64, u64), stored: bool) -> bool {
        let (offset, len) = piece;
        let Some(transfer) = links.receives.get_mut(id) else { return false };
        let Some(pieces) = &mut transfer.pieces else { return false };
        let Some(lane) = pieces.asked(offset, len) else { return false };
        pieces.put_down(lane);
        if transfer.failure.is_some() {
            transfer.arrived += len;
            if !stored {
                // It is not asked for again: the sender, to whom it counts as not sent, must hear that this is the end.
                transfer.asked -= len;
                transfer.finish = true;
            }
        } else if stored {
            self.unpack(peer, transfer, id, lane, piece);
            self.give_up_after_failure(transfer);
        } else {
            // Nor would it store the rest.
            transfer.asked -= len;
            let rest = (std::mem::replace(&mut pieces.next, transfer.wanted), transfer.wanted);
            pieces.refused.push((offset, offset + len));
            pieces.refused.extend((rest.0 != rest.1).then_some(rest));
        }
        links.ask_for_refused(id);
        true
    }

    /// Has a kernel, or copy engines in its stead, bring a piece to where it belongs.
    fn unpack(&self, peer: &Peer, transfer: &mut ReceiveTransfer, id: Id, lane: usize, (position, len): (u64, u64)) {
        let at = *transfer.convertor.location();
        let Some(pieces) = &mut transfer.pieces else { return };
        let begun = (|| {
            // The default stream was waited for before anything was asked for.
            let mut batch = self.devices.batch(&at, Direction::DeviceToDevice, Order::None)?;
            batch.reachable(Within::OneDevice);
            let (user, spread, packed) = (pieces.user, &pieces.spread, pieces.lanes[lane].slot.region().address);
            let packing = Packing { user, spread, position, packed, len, unpack: true, by_engines: true };
            // SAFETY: the buffer is the transfer's until it is settled, which waits for the copy, as does the slot; both
            // lie on the context's device, and no two blocks of a receive's buffer coincide.
            unsafe { batch.copy_packed(&packing) }?;
            batch.finish()
        })();
        match begun {
            Ok(completion) => {
                pieces.lanes[lane].holds = Holds::Unpacking;
                transfer.busy += 1;
                let then = Then::Unpacked { peer: peer.rank, id, lane, bytes: len };
                self.start_copy(Copying { completion, then, bytes: len });
            }
            Err(source) => {
                transfer.arrived += len;
                transfer.fail(Error::Device { address: pieces_address(transfer), len: transfer.wanted, source });
            }
        }
    }

    /// A piece is where it belongs.
    pub(crate) fn piece_unpacked(
        &self,
        links: &mut Links,
        (id, lane, bytes): (Id, usize, u64),
        result: Result<(), DeviceError>,
        done: &mut Done,
    ) {
        let Some(transfer) = links.receives.get_mut(id) else { return };
        transfer.busy -= 1;
        transfer.arrived += bytes;
        if let Some(pieces) = &mut transfer.pieces {
            pieces.put_down(lane);
        }
        if let Err(source) = result {
            transfer.fail(Error::Device { address: pieces_address(transfer), len: transfer.wanted, source });
        }
        self.give_up_after_failure(transfer);
        self.ask_for_pieces(links, id);
        links.settle_receive(id, done);
    }

    /// Of a message that has failed here, nothing more is asked for, and its sender must hear that it has.
    fn give_up_after_failure(&self, transfer: &mut ReceiveTransfer) {
        if transfer.failure.is_some() && transfer.give_up_pieces() {
            transfer.finish = true;
        }
    }
}

impl Links {
    /// Asks for what could not be stored as fragments, range by range, once nothing else is awaited: a sender that fails
    /// meanwhile forgets the message, and must not be asked for more of it.
    pub(super) fn ask_for_refused(&mut self, id: Id) {
        let Some(transfer) = self.receives.get_mut(id).filter(|transfer| transfer.awaited == 0) else { return };
        if transfer.failure.is_some() || transfer.gone {
            return;
        }
        if let Some(range) = transfer.pieces.as_mut().and_then(|pieces| pieces.refused.pop()) {
            self.ask_for_fragments(id, &[range]);
        }
    }
}

fn pieces_address(transfer: &ReceiveTransfer) -> usize {
    transfer.pieces.as_ref().map_or(0, |pieces| pieces.user as usize)
}

impl ReceiveTransfer {
    /// Gives up the pieces that were not asked for; whether there were any.
    pub(crate) fn give_up_pieces(&mut self) -> bool {
        let Some(pieces) = &mut self.pieces else { return false };
        let refused: u64 = pieces.refused.drain(..).map(|(from, to)| to - from).sum();
        let rest = self.wanted - std::mem::replace(&mut pieces.next, self.wanted) + refused;
        self.arrived += rest;
        rest != 0
    }

    /// The sender has given up, after all that it was storing.
    pub(crate) fn abandon_pieces(&mut self) {
        let Some(pieces) = &mut self.pieces else { return };
        for lane in 0..pieces.lanes.len() {
            if matches!(pieces.lanes[lane].holds, Holds::Asked(..)) {
                pieces.put_down(lane);
            }
        }
        self.give_up_pieces();
    }
}
