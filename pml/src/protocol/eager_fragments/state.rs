//! The state of both ends: what the sender may send without a request, and where the receiver puts it.

use std::collections::VecDeque;

use crate::core::flow;
use crate::protocol::host_costs::{UNASKED_CLASSES, unasked_class};
use crate::wire::{Id, Malformed};

/// The sender's state: the number of messages of each size that may leave without a request.
#[derive(Default)]
pub(crate) struct Permits([u8; UNASKED_CLASSES]);

impl Permits {
    /// Notes the receiver's answer to a message of this length.
    pub(crate) fn answered(&mut self, len: u64, permitted: u8) {
        if let Some(class) = unasked_class(len) {
            self.0[class] = permitted;
        }
    }

    /// Returns whether a message of this length may leave without a request.
    pub(crate) fn covers(&self, len: u64) -> bool {
        unasked_class(len).is_some_and(|class| self.0[class] != 0)
    }

    /// Notes that one leaves.
    pub(super) fn take(&mut self, len: u64) {
        if let Some(class) = unasked_class(len) {
            self.0[class] = self.0[class].saturating_sub(1);
        }
    }
}

/// The receiver's state: the messages of a peer whose data follows, the oldest first.
#[derive(Default)]
pub(crate) struct Followers {
    messages: VecDeque<Follower>,
    /// The credit that they cost.
    cost: u64,
}

struct Follower {
    sender: Id,
    len: u64,
    came: u64,
    to: Destination,
}

/// Where a message's data goes.
pub(super) enum Destination {
    /// Nowhere yet: it is collected until a receive matches the message.
    Waiting(Vec<u8>),
    /// To the receive with this transfer.
    Receive(Id),
    /// Nowhere: nobody will receive it.
    Nobody,
}

/// A message that was collected until now.
pub(super) struct Collected {
    pub(super) bytes: Vec<u8>,
    /// The credit to return, if all of it has come.
    pub(super) credit: Option<u64>,
}

/// What to do with a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Came {
    /// The receive that it belongs to. `None` if it was collected or is to be dropped.
    pub(super) to: Option<Id>,
    /// The credit to return: all of the message has come.
    pub(super) credit: Option<u64>,
}

const WHAT: &str = "a message whose data follows";

impl Followers {
    /// Adds an announced message. Together they may cost `allowed` credit, as the sender knows.
    ///
    /// # Errors
    /// The message was announced before, or the sender has no credit for it.
    pub(super) fn announced(&mut self, (sender, len): (Id, u64), allowed: u64) -> Result<(), Malformed> {
        if self.find(sender).is_some() {
            return Err(Malformed::OutOfTurn { what: WHAT, id: sender.0 });
        }
        let stored = self.cost.saturating_add(cost(len));
        if stored > allowed {
            return Err(Malformed::OverCredit { stored, allowed });
        }
        self.cost = stored;
        self.messages.push_back(Follower { sender, len, came: 0, to: Destination::Waiting(Vec::new()) });
        Ok(())
    }

    /// Changes where the data of a message goes from now on. Returns what came before.
    pub(super) fn redirect(&mut self, sender: Id, to: Destination) -> Collected {
        let Some(at) = self.find(sender) else { return Collected { bytes: Vec::new(), credit: None } };
        let message = &mut self.messages[at];
        let bytes = match std::mem::replace(&mut message.to, to) {
            Destination::Waiting(bytes) => bytes,
            Destination::Receive(_) | Destination::Nobody => Vec::new(),
        };
        Collected { bytes, credit: self.ended(at) }
    }

    /// Counts `len` bytes for `offset`, which `collect` appends if no receive has matched the message.
    ///
    /// # Errors
    /// The message was not announced, or these are not the next of its bytes.
    pub(super) fn came(
        &mut self,
        sender: Id,
        (offset, len): (u64, u64),
        collect: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Came, Malformed> {
        let at = self.find(sender).ok_or(Malformed::NoTransfer { what: WHAT, id: sender.0 })?;
        let message = &mut self.messages[at];
        if offset != message.came || len > message.len - message.came {
            return Err(Malformed::Range { from: offset, to: offset.saturating_add(len), total: message.len });
        }
        message.came += len;
        let to = match &mut message.to {
            Destination::Waiting(bytes) => {
                collect(bytes);
                return Ok(Came { to: None, credit: None });
            }
            Destination::Receive(id) => Some(*id),
            Destination::Nobody => None,
        };
        Ok(Came { to, credit: self.ended(at) })
    }

    /// Removes a message if all of it has come. Returns the credit that it has cost then.
    fn ended(&mut self, at: usize) -> Option<u64> {
        let message = self.messages.get(at).filter(|message| message.came == message.len)?;
        let cost = cost(message.len);
        self.messages.remove(at);
        self.cost -= cost;
        Some(cost)
    }

    /// Finds a message. A sender continues the oldest, so the search mostly ends at the first.
    fn find(&self, sender: Id) -> Option<usize> {
        self.messages.iter().position(|message| message.sender == sender)
    }
}

fn cost(len: u64) -> u64 {
    flow::cost(true, len.min(usize::MAX as u64 / 2) as usize)
}

#[cfg(test)]
mod tests;
