//! A message on its way out.

use std::collections::VecDeque;

use cableway_btl::Registration;
use cableway_common_cuda::{CopyOrder, DeviceError};
use cableway_datatype::Convertor;

use crate::core::{Active, flow};
use crate::error::Error;
use crate::protocol::probe::Start;
use crate::protocol::user_buffer::UserBuffer;
use crate::wire::{Envelope, Id, Malformed};

pub(crate) struct Outgoing {
    pub(crate) request: Active,
    pub(crate) buffer: UserBuffer,
    pub(crate) envelope: Envelope,
    pub(crate) len: u64,
    pub(crate) synchronous: bool,
    pub(crate) stage: Stage,
    pub(crate) one_copy: OneCopy,
    /// Whether a device of this process may store the data, which is in page-locked host memory, in device memory.
    pub(crate) page_locked: bool,
    /// Operations and copies that still read the buffer.
    pub(crate) busy: usize,
    /// Whether the receiver's FIN has come.
    pub(crate) fin_received: bool,
    pub(crate) failure: Option<Box<Error>>,
    /// Whether the peer is gone.
    pub(crate) gone: bool,
}

/// The stage of a message.
pub(crate) enum Stage {
    /// Its first header has not left.
    Starting(Start),
    /// It was sent whole, and the operation that reads the buffer is under way.
    Leaving,
    /// It was announced, and the receiver has not answered.
    Announced,
    /// The receiver has requested data.
    Moving(Answer),
}

/// How one copy may move the data, as announced to the receiver.
pub(crate) enum OneCopy {
    /// Not at all, or by a PUT that the receiver requests.
    None,
    /// No link could make a device's data reachable for the peer.
    Unreachable,
    /// The receiver may fetch it through the link with this serial.
    Exposed(Box<(u32, Registration)>),
    /// It is announced so that the receiver may request a PUT.
    Stores,
    /// A kernel packs it into the receiver's memory.
    Packs,
}

/// The data that the receiver has requested.
pub(crate) struct Answer {
    pub(crate) receiver: Id,
    /// Whether the data follows its announcement without a request. Then `receiver` is the sender's own transfer.
    pub(crate) unasked: bool,
    /// Bytes that it requests in all.
    total: u64,
    /// Bytes of these that it has requested so far.
    asked: u64,
    /// Bytes of these that have left.
    pub(crate) settled: u64,
    /// Ranges still to be sent as fragments.
    pub(crate) ranges: VecDeque<(u64, u64)>,
    /// Whether the queue of streams has the message.
    pub(crate) queued: bool,
    /// Whether the receiver's buffer is on a device. Then it sends a FIN.
    pub(crate) to_device: bool,
    /// Whether to store fragments past the caches.
    pub(crate) stream: bool,
}

impl Answer {
    /// Describes all data of a message, which nobody requests.
    pub(crate) fn unasked(id: Id, len: u64) -> Self {
        Answer {
            receiver: id,
            unasked: true,
            total: len,
            asked: len,
            settled: 0,
            ranges: VecDeque::from([(0, len)]),
            queued: false,
            to_device: false,
            stream: false,
        }
    }
}

impl Outgoing {
    pub(crate) fn new(
        request: Active,
        convertor: Convertor,
        begun: CopyOrder,
        envelope: Envelope,
        synchronous: bool,
    ) -> Self {
        Outgoing {
            request,
            len: convertor.packed_size(),
            buffer: UserBuffer::new(convertor, begun),
            envelope,
            synchronous,
            stage: Stage::Starting(Start::Announce),
            one_copy: OneCopy::None,
            page_locked: false,
            busy: 0,
            fin_received: false,
            failure: None,
            gone: false,
        }
    }

    /// Returns the credit that the data takes, if it travels with the header.
    pub(crate) fn credit(&self) -> u64 {
        match self.stage {
            Stage::Starting(Start::Eager | Start::EagerInPlace | Start::EagerDevice | Start::EagerFragments)
            | Stage::Leaving => flow::cost(true, self.len as usize),
            Stage::Starting(Start::AnnounceWithData) => flow::cost(false, self.len as usize),
            _ => 0,
        }
    }

    /// Returns the data, if it is one run of host memory.
    pub(crate) fn host_bytes(&self) -> Option<&[u8]> {
        if self.len == 0 {
            return Some(&[]);
        }
        let address = self.buffer.convertor.contiguous().filter(|_| !self.buffer.is_on_device())?;
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

    /// Counts requested bytes that have left.
    pub(crate) fn note_settled(&mut self, bytes: u64) {
        if let Some(answer) = self.answer() {
            answer.settled += bytes;
        }
    }

    /// Takes back bytes that could not be moved this way. The receiver may request them again.
    pub(crate) fn note_refused(&mut self, bytes: u64) {
        if let Some(answer) = self.answer() {
            answer.asked -= bytes;
        }
    }

    /// Counts a range that the receiver requests, if the request is valid.
    pub(crate) fn ask(
        &mut self,
        what: &'static str,
        (id, receiver): (Id, Id),
        (from, to): (u64, u64),
        total: u64,
    ) -> Result<&mut Answer, Malformed> {
        let asked = match &self.stage {
            Stage::Announced if !self.fin_received => 0,
            Stage::Moving(answer)
                if !(self.fin_received || answer.unasked) && (answer.receiver, answer.total) == (receiver, total) =>
            {
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
            let answer = Answer {
                receiver,
                unasked: false,
                total,
                asked,
                settled: 0,
                ranges,
                queued: false,
                to_device: false,
                stream: false,
            };
            self.stage = Stage::Moving(answer);
        }
        let Some(answer) = self.answer() else { return Err(Malformed::OutOfTurn { what, id: id.0 }) };
        answer.asked = asked;
        Ok(answer)
    }

    /// Notes a failure; the first one is reported.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert_with(|| Box::new(error));
        if let Some(answer) = self.answer() {
            answer.ranges.clear();
        }
    }

    /// Notes the failure of a device's copy from the buffer.
    pub(crate) fn fail_on_device(&mut self, source: DeviceError) {
        let address = self.buffer.convertor.contiguous().map_or(0, |address| address as usize);
        self.fail(Error::Device { address, len: self.len, source });
    }

    pub(crate) fn is_over(&self) -> bool {
        if self.busy != 0 {
            return false;
        }
        if self.failure.is_some() {
            // Before the receiver has answered, it has no transfer that could be aborted.
            return self.gone || self.fin_received || matches!(self.stage, Stage::Moving(_));
        }
        match &self.stage {
            Stage::Starting(_) | Stage::Announced => self.fin_received,
            Stage::Leaving => true,
            Stage::Moving(answer) => self.fin_received || (answer.settled == answer.total && !answer.to_device),
        }
    }
}
