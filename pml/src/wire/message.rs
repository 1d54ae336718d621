//! Headers in checked form.

use cableway_btl::{Offer, RemoteHandle};
use cableway_common_cuda::Strided;

use crate::error::Abort;

/// Names a transfer to the engine that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(crate) u64);

/// The fields that a message is matched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) context: u32,
    /// Number of earlier communicators with this context that the two processes shared.
    pub(crate) epoch: u16,
    pub(crate) tag: i32,
    /// Counts the messages from one rank to another in one communicator.
    pub(crate) seq: u32,
}

/// An announced message. The receiver requests its data later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) len: u64,
    pub(crate) sender: Id,
    /// The sender can PUT straight from its buffer.
    pub(crate) addressable: bool,
    /// But only into one run on a device, because a kernel of it packs.
    pub(crate) packs: bool,
    /// Or it can PUT a device's memory, and takes an [`Invite`] for this message as the request to do so.
    pub(crate) invitable: bool,
}

/// Registered memory, and by which link it can be reached: the `ordinal`-th one of the transport with this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exposed {
    pub(crate) btl: BtlTag,
    pub(crate) ordinal: u8,
    pub(crate) handle: RemoteHandle,
    /// Where in it the data is, if that is not all of it.
    pub(crate) blocks: Option<Strided>,
}

/// Stands for a transport's name in headers, and for the place of a module among those of that name: processes may have
/// loaded theirs in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BtlTag(pub(crate) u32);

impl BtlTag {
    /// FNV-1a of the name, and of the place where it is not the first.
    pub(crate) fn of(name: &str, place: u8) -> Self {
        let place = (place != 0).then_some(place);
        let bytes = name.bytes().chain(place);
        BtlTag(bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
    }
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// An eager message; the payload is its data.
    Match(Envelope),
    /// A rendezvous. The payload is empty, or all of the data (a synchronous send).
    Rendezvous(Envelope, Announced),
    /// A rendezvous with a remote key.
    Get(Envelope, Announced, Exposed),
    /// Receiver to sender: send the range as fragments.
    Ack(Ack),
    /// Receiver to sender: store the range here.
    Put(Put),
    /// Sender to receiver: data for `offset`.
    Fragment { receiver: Id, offset: u64 },
    /// Receiver to sender: FIN. `Err`: the receive failed.
    Fin { sender: Id, result: Result<(), Abort> },
    /// Sender to receiver: FIN of a PUT. `Err`: the range could not be stored.
    PutFin { receiver: Id, offset: u64, len: u64, result: Result<(), Abort> },
    /// Receiver to sender: the cost of all eager messages consumed so far.
    Credit { consumed: u64 },
    /// Sent by another link: the link of this transport failed after it had delivered `received` messages.
    Resume { btl: BtlTag, received: u64 },
    /// Receiver to sender: store this message here, if it is announced as invitable.
    Invite(Invite),
    /// Sender to receiver: no more than the `sent` bytes will come.
    Abort { receiver: Id, sent: u64, reason: Abort },
}

/// See [`Header::Ack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) sender: Id,
    pub(crate) receiver: Id,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Bytes that the sender is asked for in all, by this and other messages.
    pub(crate) total: u64,
    /// The receiver's buffer is on a device: large fragments suit it, and as its copies may fail late, a
    /// [`Header::Fin`] will tell how they went.
    pub(crate) to_device: bool,
    /// The sender is to claim this first: the receiver may have taken the range back, to fetch it itself.
    pub(crate) offer: Option<Offer>,
}

/// See [`Header::Invite`]: the answer to an announcement that may not have been made yet. Which message will go to a
/// receive is known beforehand where no other receive fits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invite {
    /// Of the message; the tag may be [`ANY`](crate::ANY).
    pub(crate) envelope: Envelope,
    pub(crate) receiver: Id,
    /// Bytes that there is room for.
    pub(crate) len: u64,
    /// To be claimed first: the receiver may have cancelled the receive, or asked for the data in another way.
    pub(crate) offer: Offer,
    /// Without blocks.
    pub(crate) to: Exposed,
}

/// See [`Header::Put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    pub(crate) sender: Id,
    pub(crate) receiver: Id,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// As in [`Ack`].
    pub(crate) total: u64,
    pub(crate) to: Exposed,
}
