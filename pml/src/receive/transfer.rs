//! A message whose data is on its way in.

use cableway_btl::{Region, RemoteHandle};
use cableway_common_cuda::{DeviceError, Devices, Moment, Order, Strided};
use cableway_datatype::Convertor;
use smallvec::{SmallVec, smallvec};

use super::pieces::Pieces;
use crate::completion::{Active, Done};
use crate::error::{Abort, Error};
use crate::invitation::Claimed;
use crate::links::Links;
use crate::region;
use crate::request::Status;
use crate::wire::{Header, Id};

pub(crate) struct ReceiveTransfer {
    pub(crate) request: Active,
    pub(crate) convertor: Convertor,
    /// When the receive was posted.
    posted: Moment,
    pub(crate) status: Status,
    pub(crate) sender: Id,
    /// Bytes to be received: no more than the buffer takes.
    pub(crate) wanted: u64,
    /// Bytes that are settled: where they belong, or given up.
    pub(crate) arrived: u64,
    /// Bytes that the sender was asked to send or store. A range that is on offer counts from its claim on.
    pub(crate) asked: u64,
    /// Bytes of these that have not come.
    pub(crate) awaited: u64,
    /// Operations and copies that still write to the buffer.
    pub(crate) busy: usize,
    pub(crate) fetch: Option<Box<Fetch>>,
    /// It comes in pieces, or some of it does.
    pub(crate) pieces: Option<Box<Pieces>>,
    /// Where it can be fetched from, while the default stream's work on a device's buffer is waited for.
    pub(crate) source: Option<Box<(Source, Way)>>,
    /// What lets the sender store, where that is to be taken back.
    pub(crate) keepers: Vec<Box<dyn Send>>,
    /// What the sender claims before it stores, where it was told beforehand.
    pub(crate) claimed: Option<Claimed>,
    /// The sender waits to be told that all is done.
    pub(crate) finish: bool,
    order: Order,
    pub(crate) failure: Option<Box<Error>>,
    /// The sender has given up, or is dead.
    pub(crate) gone: bool,
}

/// What follows once the default stream's work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Fetch,
    /// The sender stores; where that cannot be, it is fetched.
    Expose,
}

/// What can be fetched.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    /// The serial of the link that reaches it.
    pub(crate) link: u32,
    pub(crate) handle: RemoteHandle,
    /// Where in it the data is, if that is in blocks.
    pub(crate) blocks: Option<Strided>,
}

/// The receiver's side of a GET.
pub(crate) struct Fetch {
    pub(crate) from: Source,
    /// Ranges that are neither on offer nor handed to the link, in any order.
    pub(crate) ranges: SmallVec<[(u64, u64); 2]>,
    /// Ranges that it could not fetch.
    pub(crate) refused: Vec<(u64, u64)>,
    /// Whether the queue of gets has it.
    pub(crate) queued: bool,
    /// Ranges are offered to the sender, not fetched.
    pub(crate) offering: bool,
    /// Some were.
    pub(crate) offered_any: bool,
    /// Bytes that were fetched.
    pub(crate) fetched: u64,
}

impl Fetch {
    /// Of `len` bytes, to be queued.
    pub(crate) fn new(from: Source, len: u64, offering: bool) -> Self {
        Fetch {
            from,
            ranges: smallvec![(0, len)],
            refused: Vec::new(),
            queued: true,
            offering,
            offered_any: false,
            fetched: 0,
        }
    }

    /// A range cannot be fetched, nor could what is left.
    pub(crate) fn refuse(&mut self, range: (u64, u64)) {
        self.refused.push(range);
        self.refused.extend(self.ranges.drain(..).rev());
    }

    /// Takes the next range off, at most `most` bytes of it.
    pub(crate) fn take(&mut self, most: u64) -> Option<(u64, u64)> {
        let (from, to) = self.ranges.last_mut()?;
        let piece = (*from, (*from + most.max(1)).min(*to));
        *from = piece.1;
        if from == to {
            self.ranges.pop();
        }
        Some(piece)
    }
}

impl ReceiveTransfer {
    pub(crate) fn new(request: Active, convertor: Convertor, posted: Moment, status: Status, sender: Id) -> Self {
        let room = convertor.packed_size();
        ReceiveTransfer {
            request,
            status,
            sender,
            wanted: room.min(status.len),
            convertor,
            posted,
            arrived: 0,
            asked: 0,
            awaited: 0,
            busy: 0,
            fetch: None,
            pieces: None,
            source: None,
            keepers: Vec::new(),
            claimed: None,
            finish: false,
            order: Order::AfterDefaultStream,
            failure: None,
            gone: false,
        }
    }

    /// `len` bytes of the buffer from `offset` on, if the buffer is one run.
    pub(crate) fn region(&self, offset: u64, len: u64, order: Order) -> Option<Region> {
        region::run(&self.convertor, offset, len, order)
    }

    /// All of the buffer that an operation of a link may touch, and where in it the data belongs if that is in blocks.
    pub(crate) fn whole(&self, order: Order) -> Option<(Region, Option<Strided>)> {
        region::whole(&self.convertor, self.wanted, order)
    }

    /// What a copy to the buffer waits for.
    pub(crate) fn order_of_copies(&self, devices: &Devices) -> Order {
        let settled = devices.settled_since(self.convertor.location(), self.posted);
        if settled { Order::None } else { Order::AfterDefaultStream }
    }

    /// What the next copy to a device waits for. All that was in the default stream when the receive was posted is
    /// there when the first copy starts, too.
    pub(crate) fn next_order(&mut self, devices: &Devices) -> Order {
        match std::mem::replace(&mut self.order, Order::None) {
            Order::AfterDefaultStream => self.order_of_copies(devices),
            Order::None => Order::None,
        }
    }

    /// The first failure stands. What still arrives is counted and dropped.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert_with(|| Box::new(error));
    }

    /// What is wrong if the message is longer than the buffer.
    pub(crate) fn truncated(&self) -> Option<Error> {
        super::deliver::truncated(&self.status, self.wanted)
    }

    /// Whether nothing more is to come from the sender.
    pub(crate) fn has_arrived(&self) -> bool {
        self.fetch.is_none() && self.asked == self.wanted && self.awaited == 0
    }

    /// Sets out to fetch what the sender is not offered, or does not take.
    pub(crate) fn fetch_from(&mut self, source: Source, offering: bool) {
        self.fetch = Some(Box::new(Fetch::new(source, self.wanted, offering)));
        self.finish = !offering;
    }

    fn is_over(&self) -> bool {
        self.busy == 0 && (self.gone || self.arrived == self.wanted)
    }
}

impl Links {
    /// Completes a receive if nothing is left to do for it.
    pub(crate) fn settle_receive(&mut self, id: Id, done: &mut Done) {
        if !self.receives.get_mut(id).is_some_and(|transfer| transfer.is_over()) {
            return;
        }
        let Some(transfer) = self.receives.remove(id) else { return };
        let on_device = transfer.convertor.location().on_device();
        let truncated = transfer.truncated();
        let ReceiveTransfer { request, status, sender, keepers, claimed, finish, failure, gone, .. } = transfer;
        drop(keepers);
        if let Some(claimed) = claimed {
            self.end_claim(claimed);
        }
        if finish && !gone {
            let result = match failure.as_deref() {
                None => Ok(()),
                Some(Error::Btl(_) | Error::PeerFailed { .. }) => Err(Abort::Transport),
                Some(_) => Err(Abort::Device),
            };
            match result {
                Ok(()) if on_device => self.tell_finished(sender),
                result => self.control(&Header::Finish { sender, result }),
            }
        }
        request.end(status, failure.or_else(|| truncated.map(Box::new)), done);
    }

    /// A copy of fragment data into the user's buffer is done.
    pub(crate) fn copied_in(&mut self, id: Id, bytes: u64, result: Result<(), DeviceError>, done: &mut Done) {
        let Some(transfer) = self.receives.get_mut(id) else { return };
        transfer.busy -= 1;
        transfer.arrived += bytes;
        if let Err(source) = result {
            let address = transfer.convertor.contiguous().map_or(0, |address| address as usize);
            transfer.fail(Error::Device { address, len: transfer.wanted, source });
            transfer.finish |= transfer.give_up_pieces();
        }
        self.settle_receive(id, done);
    }
}
