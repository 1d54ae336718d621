//! A message on its way out.

use std::collections::VecDeque;

use cableway_btl::{Region, Registration};
use cableway_common_cuda::{Devices, Moment, Order, Strided};
use cableway_datatype::Convertor;

use crate::completion::{Active, Done};
use crate::error::{Abort, Error};
use crate::links::Links;
use crate::protocol::Start;
use crate::region;
use crate::request::Status;
use crate::wire::{Envelope, Header, Id};

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its first header has not left.
    Starting(Start),
    /// It was sent whole; the operation that reads the buffer is under way.
    Leaving,
    /// The receiver was told, and has not answered.
    Announced,
    /// The receiver has asked for data.
    Moving,
}

pub(crate) struct SendTransfer {
    pub(crate) request: Active,
    pub(crate) convertor: Convertor,
    pub(crate) envelope: Envelope,
    pub(crate) len: u64,
    pub(crate) synchronous: bool,
    pub(crate) phase: Phase,
    pub(crate) receiver: Option<Id>,
    /// Bytes that the receiver asked for in all, once it did.
    pub(crate) total: u64,
    /// Bytes of these that it asked for so far.
    pub(crate) asked: u64,
    /// Bytes of these that have left.
    pub(crate) settled: u64,
    /// Ranges still to be sent as fragments.
    pub(crate) ranges: VecDeque<(u64, u64)>,
    /// Whether the queue of streams has it.
    pub(crate) queued: bool,
    /// Operations and copies that still read the buffer.
    pub(crate) busy: usize,
    /// The receiver's buffer is on a device. It will say when it is done.
    pub(crate) to_device: bool,
    /// The receiver has said that it is done.
    pub(crate) finished: bool,
    /// Lets the receiver fetch through the link of this serial.
    pub(crate) registration: Option<Box<(u32, Registration)>>,
    /// No link could make a device's data reachable for the peer.
    pub(crate) unreachable: bool,
    /// The receiver was told that a kernel packs it where it is told to.
    pub(crate) packs: bool,
    /// The receiver was told that an invitation counts as its answer.
    pub(crate) invitable: bool,
    /// The default stream's work on a device's data is done.
    pub(crate) ordered: bool,
    /// When the send began.
    begun: Moment,
    /// It was announced in the hope that the receiver lets this process store a device's data.
    pub(crate) stores: bool,
    /// Its copies wait for the default stream; only the first has to.
    order: Order,
    pub(crate) failure: Option<Box<Error>>,
    /// There is nobody left to tell.
    pub(crate) gone: bool,
}

impl SendTransfer {
    pub(crate) fn new(
        request: Active,
        convertor: Convertor,
        begun: Moment,
        envelope: Envelope,
        synchronous: bool,
    ) -> Self {
        SendTransfer {
            request,
            len: convertor.packed_size(),
            convertor,
            envelope,
            synchronous,
            phase: Phase::Starting(Start::Announce),
            receiver: None,
            total: 0,
            asked: 0,
            settled: 0,
            ranges: VecDeque::new(),
            queued: false,
            busy: 0,
            to_device: false,
            finished: false,
            registration: None,
            unreachable: false,
            packs: false,
            invitable: false,
            ordered: false,
            begun,
            stores: false,
            order: Order::AfterDefaultStream,
            failure: None,
            gone: false,
        }
    }

    /// `len` bytes of the buffer from `offset` on, if the buffer is one run.
    pub(crate) fn region(&self, offset: u64, len: u64, order: Order) -> Option<Region> {
        region::run(&self.convertor, offset, len, order)
    }

    /// All of the buffer that an operation of a link may touch, and where in it the data is if it is in blocks.
    pub(crate) fn whole(&self, order: Order) -> Option<(Region, Option<Strided>)> {
        region::whole(&self.convertor, self.len, order)
    }

    /// What a copy from the buffer waits for.
    pub(crate) fn order_of_copies(&self, devices: &Devices) -> Order {
        let settled = self.ordered || devices.settled_since(self.convertor.location(), self.begun);
        if settled { Order::None } else { Order::AfterDefaultStream }
    }

    /// What the next copy from a device waits for.
    pub(crate) fn next_order(&mut self, devices: &Devices) -> Order {
        match std::mem::replace(&mut self.order, Order::None) {
            Order::AfterDefaultStream => self.order_of_copies(devices),
            Order::None => Order::None,
        }
    }

    /// The first failure stands.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert_with(|| Box::new(error));
        self.ranges.clear();
    }

    fn is_over(&self) -> bool {
        if self.busy != 0 {
            return false;
        }
        if self.failure.is_some() {
            // Before the receiver has answered there is no transfer there that could be given up.
            return self.gone || self.finished || self.receiver.is_some();
        }
        match self.phase {
            Phase::Starting(_) | Phase::Announced => self.finished,
            Phase::Leaving => true,
            Phase::Moving => self.finished || (self.settled == self.total && !self.to_device),
        }
    }
}

impl Links {
    /// Completes a send if nothing is left to do for it.
    pub(crate) fn settle_send(&mut self, id: Id, done: &mut Done) {
        if !self.sends.get_mut(id).is_some_and(|transfer| transfer.is_over()) {
            return;
        }
        let Some(transfer) = self.sends.remove(id) else { return };
        if let (Some(receiver), true, false) = (transfer.receiver, transfer.failure.is_some(), transfer.gone)
            && !transfer.finished
        {
            self.control(&Header::Abort { receiver, sent: transfer.settled, reason: Abort::Device });
        }
        transfer.request.end(Status::EMPTY, transfer.failure, done);
    }
}
