//! Exchanges with some members.

use std::collections::HashSet;

use cableway_base::Rank;
use cableway_coll::{Call, Edge, Memory};

use super::parts::{region, region_mut};
use super::{Member, Prepared};
use crate::Error;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::error::Collective;

/// The messages of a rank in an exchange with its neighbours
/// ([`Communicator::neighbor_alltoall`](crate::Communicator::neighbor_alltoall)): what it sends, and where it receives.
///
/// Each message has a number, which tells several messages from one rank to another apart. The sender and the receiver give the
/// same number. In a grid it can be the direction in which the data goes. Buffers may have any length, layout and place; one buffer
/// may be sent to several neighbours.
#[derive(Debug, Default)]
pub struct Neighbors<'a> {
    sends: Vec<Message<'a>>,
    receives: Vec<Message<'a>>,
}

#[derive(Clone, Copy, Debug)]
struct Message<'a> {
    rank: Rank,
    number: u16,
    memory: Memory<'a>,
}

impl<'a> Neighbors<'a> {
    /// Describes an exchange without messages.
    pub fn new() -> Self {
        Neighbors::default()
    }

    /// Adds a message to rank `to`. Waits here for work that is queued on the buffer, as a send does.
    ///
    /// # Errors
    /// The queued work failed.
    pub fn send(&mut self, data: &'a (impl SendBuffer + ?Sized), to: Rank, number: u16) -> Result<&mut Self, Error> {
        self.sends.push(Message { rank: to, number, memory: region(data)?.memory() });
        Ok(self)
    }

    /// Adds a message of exactly the buffer's length from rank `from`. Waits here for work that is queued on the buffer, as
    /// a receive does.
    ///
    /// # Errors
    /// The queued work failed.
    pub fn receive(
        &mut self,
        buffer: &'a mut (impl RecvBuffer + ?Sized),
        from: Rank,
        number: u16,
    ) -> Result<&mut Self, Error> {
        self.receives.push(Message { rank: from, number, memory: region_mut(buffer)?.memory() });
        Ok(self)
    }
}

/// Prepares an exchange with neighbours.
pub(crate) fn neighbors<'a>(
    member: Member,
    Neighbors { sends, receives }: Neighbors<'a>,
) -> Result<Prepared<'a>, Error> {
    let bytes = sends.iter().map(|send| send.memory.packed_len()).fold(0, u64::saturating_add);
    let operation = Collective { name: "neighbor_alltoall", root: None, bytes: Some(bytes) };
    for (messages, what) in [(&sends, "to"), (&receives, "from")] {
        let mut seen = HashSet::new();
        for Message { rank, number, .. } in messages {
            if *rank >= member.size {
                let (rank, size) = (i32::try_from(*rank).unwrap_or(i32::MAX), member.size as usize);
                return Err(operation.failed(cableway_pml::Error::NoSuchRank { rank, size }.into()));
            }
            if !seen.insert((rank, number)) {
                let reason = format!(
                    "two messages {what} rank {rank} have the number {number}: give each message its own number"
                );
                return Err(operation.refused(reason));
            }
        }
    }
    check_own(member, &sends, &receives, operation)?;
    let edges = |messages: Vec<Message<'a>>| {
        let edge = |Message { rank, number, memory }| Edge { rank, message: number.into(), memory };
        messages.into_iter().map(edge).collect()
    };
    let (send, receive) = (edges(sends), edges(receives));
    Ok(Prepared { operation, call: Call::Neighbors { send, receive, with_empty: true } })
}

/// Checks that each message of this rank to itself has a place of its length, and each such place a message.
fn check_own(
    member: Member,
    sends: &[Message<'_>],
    receives: &[Message<'_>],
    operation: Collective,
) -> Result<(), Error> {
    let own = |message: &&Message<'_>| message.rank == member.rank;
    let described = |message: &Message<'_>| (message.number, message.memory.packed_len());
    let expected: HashSet<_> = receives.iter().filter(own).map(described).collect();
    let sent: HashSet<_> = sends.iter().filter(own).map(described).collect();
    if let Some((number, bytes)) = sent.difference(&expected).next() {
        let reason = format!("this rank does not receive message {number} of {bytes} bytes, which it sends itself");
        return Err(operation.refused(reason));
    }
    match expected.difference(&sent).next() {
        None => Ok(()),
        Some((number, bytes)) => Err(operation.refused(format!(
            "this rank does not send message {number} of {bytes} bytes, which it expects from itself"
        ))),
    }
}
