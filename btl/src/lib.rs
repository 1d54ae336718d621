//! The contract of a byte transfer layer (BTL): what `pml` may request of a transport, and what a transport may rely
//! on.
//!
//! A [`Btl`] is one transport of this process. [`Btl::connect`] returns [`Endpoint`]s, one for each link to a peer,
//! which send. [`Upcalls`] receive messages within [`Btl::progress`]. `pml` uses only this crate, never a concrete
//! transport.
//!
//! # Rules for every BTL
//!
//! **Threads.** Any thread may call methods of `Btl` at any time. An `Endpoint` is `Send`, and its sending methods take
//! `&mut self`. Its owner serialises them, so the BTL needs no lock for state of one endpoint. Endpoints of different
//! peers never wait for each other.
//!
//! **Blocking.** No call blocks. A call that must wait returns [`Sent::Busy`] (`None` from `alloc`) and has no effect.
//! The caller tries again after a later `progress`. Connecting is lazy: an endpoint begins to connect at the first send
//! or at [`Endpoint::connect`], and is busy meanwhile.
//!
//! **Progress and re-entrancy.** `progress` delivers arrived messages and completes finished operations. At most one
//! thread is inside at a time. A call while another call is inside, even further up its own stack, returns 0 at once.
//! An upcall may call any method of any endpoint, and `progress`. It must not keep a [`Received`] beyond its return
//! except by [`Received::retain`].
//!
//! **Sleeping.** An idle process may sleep on the descriptors from [`Btl::arm`] if every transport in use provides
//! them.
//!
//! **Order.** Messages sent on one endpoint by `send_inline`, `send` and `send_in_place` arrive in the order of the
//! calls, each exactly once. There is no order between endpoints, or between messages and `put`/`get`. A `put` is
//! visible to the peer once its completion was reported here and a later message has arrived there.
//!
//! **Links.** The n-th endpoint that `connect` returns for a peer, and the peer's n-th endpoint for this process, are
//! the two ends of one link. Both sides have the same number of links. A header names the link for a `put` or `get` by
//! BTL and number. If a transport consists of several modules, name, [`Btl::place`] and number identify the link. The
//! second best of these modules has lower exclusivity, equally at both ends, so that it stands by. A broken link fails
//! its peer, even if other links to it stand, because its messages in flight are lost unless the transport can list
//! them (see Failure).
//!
//! **Failure.** Every call on a failed endpoint returns an error. `progress` calls `Upcalls::peer_failed` once for its
//! peer. After that nothing more arrives from that peer through this BTL, and every outstanding token of it has
//! completed with an error. While a thread calls `progress`, a peer's death is detected within 2 s on one node, and
//! within `peer_timeout` over a network.
//!
//! If the links have [`Flags::FAILOVER`], the transport knows which messages arrived. It reports this once, after
//! `peer_failed` ([`Btl::remains`]), so that another transport can deliver the rest. Until that report, a fragment that
//! was allocated before the failure can be sent. It then counts as sent and not delivered.
//!
//! A peer that could never be connected is reported with [`Error::Unreachable`]. Nothing was lost. The peer may have
//! left before.
//!
//! **Leaving.** A process sends nothing after it calls `finalize`. Its peers deliver all earlier messages, complete
//! every outstanding token of it (with [`Error::PeerLeft`] if the process did not take the data), and then call
//! `Upcalls::peer_left` once, unless they have called `peer_failed`. As soon as the peer's goodbye was read, perhaps
//! before the upcall, its endpoints return [`Error::PeerLeft`] and send nothing. The end of the process after that is
//! no failure.
//!
//! **Trust.** Bytes from a peer are hostile. The BTL checks its own framing and disconnects a peer that breaks it. It
//! delivers private memory or opaque [`SharedBytes`], which `pml` copies before it parses them.
//!
//! **Devices.** A BTL's own memory is never device memory. Fragments of [`FragmentKind::Device`] are registered with
//! the driver, so that copies from and to them are asynchronous.

mod capability;
mod distance;
mod endpoint;
mod error;
mod fragment;
mod identity;
mod mapping;
mod modex;
pub mod process;
pub mod published;
mod received;
mod region;
mod remains;
mod streaming;

pub use capability::{Capabilities, Cost, Flags, Mover, Operation};
pub use distance::Distance;
pub use endpoint::{Btl, Endpoint, Offer, Sent, Token, Transfer, Upcalls};
pub use error::Error;
pub use fragment::{Fragment, FragmentKind, FragmentOwner};
pub use identity::Identity;
pub use mapping::{DeviceMapping, Mapping};
pub use modex::{Job, Modex, ModexError, Names};
pub use received::{Received, Retain, Retained, SharedBytes};
pub use region::{Access, Local, Packed, Region, Registration, Remote, RemoteHandle};
pub use remains::Remains;

pub use cableway_base::Rank;

/// The longest header that `pml` puts before a payload, in bytes. A BTL may rely on it.
pub const MAX_HEADER: usize = 256;

/// The largest message that every BTL can send, at least as a fragment, whatever its limits are set to.
pub const MIN_MESSAGE: usize = 2 * MAX_HEADER;
