//! Checked headers.

use cableway_btl::{Offer, RemoteHandle};
use cableway_common_cuda::Strided;

use crate::error::Abort;

/// Identifies a transfer to the engine that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(crate) u64);

/// The fields by which a message is matched.
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
    /// Whether the sender can PUT straight from its buffer.
    pub(crate) addressable: bool,
    /// Whether it can PUT only into one run of device memory, because its kernel packs.
    pub(crate) packs: bool,
    /// Whether it can PUT device memory, and accepts an [`Invite`] for this message as the request.
    pub(crate) invitable: bool,
}

/// Registered memory, and the link that reaches it: number `ordinal` of the transport with this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exposed {
    pub(crate) btl: BtlTag,
    pub(crate) ordinal: u8,
    pub(crate) handle: RemoteHandle,
    /// The blocks in the memory that hold the data, or `None` if all of it does.
    pub(crate) blocks: Option<Strided>,
}

/// Identifies a transport in headers by its name, and by its module's place among those of that name. Processes may
/// load their modules in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BtlTag(pub(crate) u32);

impl BtlTag {
    /// Computes FNV-1a of the name, and of the place unless that is the first.
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
    /// Sent over another link: the link of this transport failed after it had delivered `received` messages.
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
    /// Bytes that the receiver requests in all, by this and other headers.
    pub(crate) total: u64,
    /// Whether the receiver's buffer is on a device. Large fragments suit it. Its copies may fail late, so a
    /// [`Header::Fin`] reports their result.
    pub(crate) to_device: bool,
    /// An offer that the sender must claim first. The receiver may have withdrawn it to fetch the range itself.
    pub(crate) offer: Option<Offer>,
}

/// See [`Header::Invite`]. It answers an announcement that may not have been sent yet. The receiver knows the message
/// of a receive in advance if no other receive fits that message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invite {
    /// The message's envelope. The tag may be [`ANY`](crate::ANY).
    pub(crate) envelope: Envelope,
    pub(crate) receiver: Id,
    /// Length of the receive buffer in bytes.
    pub(crate) len: u64,
    /// The offer that the sender must claim first. The receiver may have cancelled the receive, or requested the data
    /// in another way.
    pub(crate) offer: Offer,
    /// The receive buffer, which has no blocks.
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
