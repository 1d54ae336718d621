//! A message on its way out.

use std::collections::VecDeque;

use cableway_btl::{Region, Registration};
use cableway_common_cuda::{DeviceError, Devices, Moment, Order, Strided};
use cableway_datatype::Convertor;

use crate::core::Active;
use crate::error::Error;
use crate::protocol::order::CopyOrder;
use crate::protocol::probe::Start;
use crate::protocol::region;
use crate::wire::{Envelope, Id, Malformed};

pub(crate) struct Outgoing {
    pub(crate) request: Active,
    pub(crate) convertor: Convertor,
    pub(crate) envelope: Envelope,
    pub(crate) len: u64,
    pub(crate) synchronous: bool,
    pub(crate) order: CopyOrder,
    pub(crate) stage: Stage,
    pub(crate) one_copy: OneCopy,
    /// Operations and copies that still read the buffer.
    pub(crate) busy: usize,
    /// The receiver's FIN has come.
    pub(crate) fin_received: bool,
    pub(crate) failure: Option<Box<Error>>,
    /// There is nobody left to tell.
    pub(crate) gone: bool,
}

/// Where a message stands.
pub(crate) enum Stage {
    /// Its first header has not left.
    Starting(Start),
    /// It was sent whole; the operation that reads the buffer is under way.
    Leaving,
    /// The receiver was told, and has not answered.
    Announced,
    /// The receiver has asked for data.
    Moving(Answer),
}

/// How the data may move in one copy, as the receiver is told.
pub(crate) enum OneCopy {
    /// Not at all, or the receiver may ask to have it stored.
    None,
    /// No link could make a device's data reachable for the peer.
    Unreachable,
    /// The receiver may fetch it through the link of this serial.
    Exposed(Box<(u32, Registration)>),
    /// It is announced in the hope that the receiver lets this process store it.
    Stores {
        /// An invitation counts as the receiver's answer.
        invitable: bool,
    },
    /// A kernel packs it where the receiver says.
    Packs,
}

/// What the receiver has asked for.
pub(crate) struct Answer {
    pub(crate) receiver: Id,
    /// Bytes that it asks for in all.
    total: u64,
    /// Bytes of these that it asked for so far.
    asked: u64,
    /// Bytes of these that have left.
    pub(crate) settled: u64,
    /// Ranges still to be sent as fragments.
    pub(crate) ranges: VecDeque<(u64, u64)>,
    /// Whether the queue of streams has the message.
    pub(crate) queued: bool,
    /// The receiver's buffer is on a device. It will say when it is done.
    pub(crate) to_device: bool,
}

impl Outgoing {
    pub(crate) fn new(
        request: Active,
        convertor: Convertor,
        begun: Moment,
        envelope: Envelope,
        synchronous: bool,
    ) -> Self {
        Outgoing {
            request,
            len: convertor.packed_size(),
            convertor,
            envelope,
            synchronous,
            order: CopyOrder::new(begun),
            stage: Stage::Starting(Start::Announce),
            one_copy: OneCopy::None,
            busy: 0,
            fin_received: false,
            failure: None,
            gone: false,
        }
    }

    pub(crate) fn is_on_device(&self) -> bool {
        self.convertor.location().on_device()
    }

    /// `len` bytes of the buffer from `offset` on, if the buffer is one run.
    pub(crate) fn region(&self, offset: u64, len: u64, order: Order) -> Option<Region> {
        region::run(&self.convertor, offset, len, order)
    }

    /// All of the buffer that an operation of a link may touch, and where in it the data is if it is in blocks.
    pub(crate) fn whole(&self, order: Order) -> Option<(Region, Option<Strided>)> {
        region::whole(&self.convertor, self.len, order)
    }

    /// What an operation of a link on the buffer waits for.
    pub(crate) fn order(&self, devices: &Devices) -> Order {
        if self.is_on_device() { self.order.of(self.convertor.location(), devices) } else { Order::None }
    }

    /// What the next copy from a device waits for.
    pub(crate) fn next_order(&mut self, devices: &Devices) -> Order {
        self.order.next(self.convertor.location(), devices)
    }

    /// The data, if the CPU can read it in one run.
    pub(crate) fn host_bytes(&self) -> Option<&[u8]> {
        if self.len == 0 {
            return Some(&[]);
        }
        let address = self.convertor.contiguous().filter(|_| !self.is_on_device())?;
        // SAFETY: the host promised that the buffer stays valid and unwritten until the request completes.
        Some(unsafe { std::slice::from_raw_parts(address, self.len as usize) })
    }

    pub(crate) fn is_announced(&self) -> bool {
        matches!(self.stage, Stage::Announced)
    }

    pub(crate) fn answer(&mut self) -> Option<&mut Answer> {
        match &mut self.stage {
            Stage::Moving(answer) => Some(answer),
            _ => None,
        }
    }

    /// Bytes that were asked for have left.
    pub(crate) fn note_settled(&mut self, bytes: u64) {
        if let Some(answer) = self.answer() {
            answer.settled += bytes;
        }
    }

    /// Bytes that were asked for could not be moved so, and may be asked for again.
    pub(crate) fn note_refused(&mut self, bytes: u64) {
        if let Some(answer) = self.answer() {
            answer.asked -= bytes;
        }
    }

    /// Counts a range that the receiver asks for, if its request makes sense.
    pub(crate) fn ask(
        &mut self,
        what: &'static str,
        (id, receiver): (Id, Id),
        (from, to): (u64, u64),
        total: u64,
    ) -> Result<&mut Answer, Malformed> {
        let asked = match &self.stage {
            Stage::Announced if !self.fin_received => 0,
            Stage::Moving(answer) if !self.fin_received && (answer.receiver, answer.total) == (receiver, total) => {
                answer.asked
            }
            _ => return Err(Malformed::OutOfTurn { what, id: id.0 }),
        };
        let asked = asked.saturating_add(to - from);
        if to > self.len || total > self.len || asked > total {
            return Err(Malformed::Range { from, to, total: self.len });
        }
        if self.is_announced() {
            let ranges = VecDeque::new();
            let answer = Answer { receiver, total, asked, settled: 0, ranges, queued: false, to_device: false };
            self.stage = Stage::Moving(answer);
        }
        let Some(answer) = self.answer() else { return Err(Malformed::OutOfTurn { what, id: id.0 }) };
        answer.asked = asked;
        Ok(answer)
    }

    /// The first failure stands.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert_with(|| Box::new(error));
        if let Some(answer) = self.answer() {
            answer.ranges.clear();
        }
    }

    /// A device's copy from the buffer failed.
    pub(crate) fn fail_on_device(&mut self, source: DeviceError) {
        let address = self.convertor.contiguous().map_or(0, |address| address as usize);
        self.fail(Error::Device { address, len: self.len, source });
    }

    pub(crate) fn is_over(&self) -> bool {
        if self.busy != 0 {
            return false;
        }
        if self.failure.is_some() {
            // Before the receiver has answered there is no transfer there that could be given up.
            return self.gone || self.fin_received || matches!(self.stage, Stage::Moving(_));
        }
        match &self.stage {
            Stage::Starting(_) | Stage::Announced => self.fin_received,
            Stage::Leaving => true,
            Stage::Moving(answer) => self.fin_received || (answer.settled == answer.total && !answer.to_device),
        }
    }
}
