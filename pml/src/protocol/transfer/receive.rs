//! A message whose data is on its way in.

use cableway_common_cuda::{CopyOrder, DeviceError};
use cableway_datatype::Convertor;

use crate::core::Active;
use crate::error::Error;
use crate::protocol::get::{Fetch, Remote};
use crate::protocol::pieces::Pieces;
use crate::protocol::user_buffer::UserBuffer;
use crate::status::Status;
use crate::wire::Id;

pub(crate) struct Incoming {
    pub(crate) request: Active,
    pub(crate) buffer: UserBuffer,
    pub(crate) status: Status,
    pub(crate) sender: Id,
    /// Bytes to receive, at most the length of the buffer.
    pub(crate) wanted: u64,
    /// Bytes that are settled: received, or given up.
    pub(crate) arrived: u64,
    /// Bytes that the sender was asked to send or store. An offered range counts once it is claimed.
    pub(crate) asked: u64,
    /// Bytes of these that have not come.
    pub(crate) awaited: u64,
    /// Operations and copies that still write to the buffer.
    pub(crate) busy: usize,
    pub(crate) protocol: Protocol,
    /// Whether the sender waits for a FIN.
    pub(crate) owes_fin: bool,
    /// Whether the sender is to store fragments past the caches.
    pub(crate) stream: bool,
    /// Whether the sender is to store eager messages through the caches from now on.
    pub(crate) cache_eager: bool,
    /// The next messages of this size that the sender may send without a request.
    pub(crate) unasked: u8,
    /// Whether a device message is fetched into this page-locked memory, if it is announced with a remote key.
    pub(crate) fetches: bool,
    /// Whether the message's time is measured.
    pub(crate) timed: bool,
    pub(crate) failure: Option<Box<Error>>,
    /// Whether the sender has given up, or is dead.
    pub(crate) gone: bool,
}

/// The protocol that moves the data.
pub(crate) enum Protocol {
    /// Waiting for the default stream's work on the buffer.
    Ordering(Box<AfterOrder>),
    /// This process fetches the data, or offers it to the sender.
    Get(Box<Fetch>),
    /// The sender stores it.
    Put {
        /// The registrations that let the sender store, if they must be withdrawn later.
        keepers: Vec<Box<dyn Send>>,
    },
    /// The sender stores it in scratch memory.
    Pieces(Box<Pieces>),
    /// The sender sends it as fragments.
    Fragments,
}

/// The step after the default stream's work.
pub(crate) enum AfterOrder {
    Fetch(Remote),
    /// The sender stores; if it cannot, this process fetches.
    Expose(Option<Remote>),
    AskForPieces(Box<Pieces>),
}

impl Incoming {
    pub(crate) fn new(request: Active, convertor: Convertor, posted: CopyOrder, status: Status, sender: Id) -> Self {
        let capacity = convertor.packed_size();
        request.begin_transfer();
        Incoming {
            request,
            status,
            sender,
            wanted: capacity.min(status.len),
            buffer: UserBuffer::new(convertor, posted),
            arrived: 0,
            asked: 0,
            awaited: 0,
            busy: 0,
            protocol: Protocol::Fragments,
            owes_fin: false,
            stream: true,
            cache_eager: false,
            unasked: 0,
            fetches: false,
            timed: false,
            failure: None,
            gone: false,
        }
    }

    pub(crate) fn fetch(&mut self) -> Option<&mut Fetch> {
        match &mut self.protocol {
            Protocol::Get(fetch) => Some(fetch),
            _ => None,
        }
    }

    pub(crate) fn pieces(&mut self) -> Option<&mut Pieces> {
        match &mut self.protocol {
            Protocol::Pieces(pieces) => Some(pieces),
            _ => None,
        }
    }

    /// Keeps the registration that lets the sender store.
    pub(crate) fn keep(&mut self, keeper: Option<Box<dyn Send>>) {
        let Protocol::Put { keepers } = &mut self.protocol else {
            self.protocol = Protocol::Put { keepers: keeper.into_iter().collect() };
            return;
        };
        keepers.extend(keeper);
    }

    /// Counts bytes that were requested from the sender.
    pub(crate) fn note_asked(&mut self, bytes: u64) {
        self.asked += bytes;
        self.awaited += bytes;
    }

    /// Notes a failure; the first one is reported. Data that still arrives is counted and dropped.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert_with(|| Box::new(error));
    }

    /// Notes the failure of a device's copy to the buffer.
    pub(crate) fn fail_on_device(&mut self, source: DeviceError) {
        let user = self.pieces().map(|pieces| pieces.user as usize);
        let address = user.or_else(|| self.buffer.convertor.contiguous().map(|address| address as usize)).unwrap_or(0);
        self.fail(Error::Device { address, len: self.wanted, source });
    }

    /// Gives up what was neither requested nor fetched. Returns the number of bytes.
    pub(crate) fn abort_rest(&mut self) -> u64 {
        let given_up = match &mut self.protocol {
            Protocol::Get(fetch) => fetch.abort(),
            Protocol::Pieces(pieces) => pieces.abort(self.wanted),
            Protocol::Ordering(_) | Protocol::Put { .. } | Protocol::Fragments => 0,
        };
        self.arrived += given_up;
        given_up
    }

    /// A failed message requests no more pieces, and the sender must learn that.
    pub(crate) fn abort_pieces_after_failure(&mut self) {
        if self.failure.is_some() && self.pieces().is_some() && self.abort_rest() != 0 {
            self.owes_fin = true;
        }
    }

    /// Returns the error of a message that is longer than the buffer.
    pub(crate) fn truncated(&self) -> Option<Error> {
        Error::truncated(&self.status, self.wanted)
    }

    /// Returns whether no more data will come from the sender.
    pub(crate) fn has_arrived(&self) -> bool {
        !matches!(self.protocol, Protocol::Get(_)) && self.asked == self.wanted && self.awaited == 0
    }

    pub(crate) fn is_over(&self) -> bool {
        self.busy == 0 && (self.gone || self.arrived == self.wanted)
    }
}
