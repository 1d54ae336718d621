//! Messages kept until somebody asks for them.

use cableway_btl::SharedBytes;
use smallvec::SmallVec;

use crate::core::flow;
use crate::wire::{Announced, Envelope, Exposed};

/// What a message is beside its envelope and payload.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Its payload is all of it.
    Eager,
    /// Its data must be asked for, or, if it came along, its arrival acknowledged.
    Announced(Rendezvous),
}

/// What an announced message says of its data.
#[derive(Clone, Debug)]
pub(crate) struct Rendezvous {
    pub(crate) announced: Announced,
    /// Set if it can be fetched.
    /// Apart, because it is long, and most messages have none.
    pub(crate) exposed: Option<Box<Exposed>>,
}

impl Content {
    pub(crate) fn announced(announced: Announced, exposed: Option<Exposed>) -> Self {
        Content::Announced(Rendezvous { announced, exposed: exposed.map(Box::new) })
    }
}

/// Payloads up to this size are kept without an allocation of their own.
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

    /// Length of the message.
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::Eager => self.payload.len() as u64,
            Content::Announced(rendezvous) => rendezvous.announced.len,
        }
    }

    /// What it takes off its sender's credit.
    pub(crate) fn cost(&self) -> u64 {
        flow::cost(matches!(self.content, Content::Eager), self.payload.len())
    }
}
