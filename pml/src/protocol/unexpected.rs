//! Unexpected messages: kept until a receive matches them.

use cableway_btl::SharedBytes;
use smallvec::SmallVec;

use super::rendezvous::Announced;
use crate::core::flow;
use crate::wire::{Envelope, Exposed, Id};

/// The kind of a message, beside its envelope and payload.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Its payload is complete.
    Eager,
    /// Its data must be requested. If the data came along, its arrival must be acknowledged.
    Announced(Rendezvous),
}

/// An announced message's data.
#[derive(Clone, Debug)]
pub(crate) struct Rendezvous {
    pub(crate) announced: Announced,
    /// Set if the data can be fetched. Boxed, because it is long and most messages have none.
    pub(crate) exposed: Option<Box<Exposed>>,
}

impl Content {
    /// Returns the sender's transfer and the length of a message whose data follows without a request.
    #[inline]
    pub(crate) fn follows(&self) -> Option<(Id, u64)> {
        match self {
            Content::Announced(Rendezvous { announced, .. }) if announced.follows => {
                Some((announced.sender, announced.len))
            }
            _ => None,
        }
    }

    /// Returns whether the message's sender waits for the receiver.
    pub(crate) fn is_announced(&self) -> bool {
        matches!(self, Content::Announced(_))
    }

    pub(crate) fn announced(announced: Announced, exposed: Option<Exposed>) -> Self {
        Content::Announced(Rendezvous { announced, exposed: exposed.map(Box::new) })
    }
}

/// Payloads up to this size are kept without a separate allocation.
const SMALL: usize = 32;

/// A private copy of a message.
pub(crate) struct UnexpectedMessage {
    pub(crate) envelope: Envelope,
    pub(crate) content: Content,
    pub(crate) payload: SmallVec<[u8; SMALL]>,
}

impl UnexpectedMessage {
    pub(crate) fn new(envelope: Envelope, content: Content, payload: SharedBytes<'_>) -> Self {
        let copy = if payload.len() <= SMALL {
            let mut bytes = [0; SMALL];
            let len = payload.copy_to(&mut bytes);
            SmallVec::from_buf_and_len(bytes, len)
        } else {
            let mut bytes = vec![0; payload.len()];
            payload.copy_to(&mut bytes);
            SmallVec::from_vec(bytes)
        };
        UnexpectedMessage { envelope, content, payload: copy }
    }

    /// Returns the length of the message.
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::Eager => self.payload.len() as u64,
            Content::Announced(rendezvous) => rendezvous.announced.len,
        }
    }

    /// Returns the credit that it costs its sender.
    pub(crate) fn cost(&self) -> u64 {
        match self.content.follows() {
            Some((_, len)) => flow::cost(true, len as usize),
            None => flow::cost(matches!(self.content, Content::Eager), self.payload.len()),
        }
    }
}
