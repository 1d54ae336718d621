//! The contract of a byte transfer layer (BTL): what `pml` may ask of a transport, and what a transport may rely on.
//!
//! A [`Btl`] is one transport of this process. [`Btl::connect`] yields [`Endpoint`]s, one per link to a peer, through
//! which bytes leave; what arrives is handed to [`Upcalls`] from within [`Btl::progress`]. `pml` sees only this crate,
//! never a concrete transport.
//!
//! # What holds for every BTL
//!
//! **Threads.** Methods of `Btl` may be called from any thread at any time. An `Endpoint` is `Send` and its sending
//! methods take `&mut self`: its owner serialises them, the BTL needs no lock for what only one endpoint touches.
//! Endpoints of different peers never wait for each other.
//!
//! **Blocking.** Nothing blocks. What cannot be taken now is answered [`Sent::Busy`] (or `None` by `alloc`) and has
//! no effect; the caller tries again after a later `progress`. Connecting is lazy: an endpoint that is not connected
//! yet starts to connect at the first send, or at [`Endpoint::connect`], and answers busy meanwhile.
//!
//! **Progress and re-entrancy.** `progress` delivers what has arrived and completes what has finished. At most one
//! thread is inside at a time: a call that finds another inside (be it further up its own stack) returns 0 at once.
//! An upcall may call any method of any endpoint, and `progress`.  It must not keep a [`Received`] past its return
//! but by [`Received::retain`].
//!
//! **Sleeping.** A process that has nothing else to do may sleep on what [`Btl::arm`] names, where every transport in use
//! names something.
//!
//! **Order.** Messages sent on one endpoint by `send_inline`, `send` and `send_in_place` arrive in the order of the
//! calls, each exactly once. Nothing is promised between endpoints, nor between messages and `put`/`get`: a `put` is
//! visible to the peer once its completion was reported here and a later message has arrived there.
//!
//! **Links.** The n-th endpoint that `connect` yields for a peer here and the n-th that the peer's yields for this process
//! are the two ends of one link, whatever their routes: by BTL and number a header names the link by which a `put` or
//! `get` is to go. Both sides have equally many. Of a transport that is several modules, it is name, [`Btl::place`] and
//! number; the second best of these modules has less exclusivity, by as much at both ends, so that it stands by. A link that breaks takes its peer with it: what was on its way there is
//! lost, unless the transport keeps account of it (see Failure), so it reports that the peer failed, even where other links
//! to it stand.
//!
//! **Failure.** An endpoint that failed answers every call with an error, and `Upcalls::peer_failed` is called once
//! for its peer from `progress`; after that nothing more arrives from that peer through this BTL and every
//! outstanding token of it has been completed with an error. A peer's death is noticed within 2 s on one node and
//! within `peer_timeout` over a network, as long as somebody calls `progress`.
//!
//! Where the links have [`Flags::FAILOVER`], the transport knows what became of its messages, and tells it once, after
//! `peer_failed` ([`Btl::remains`]); so another transport may deliver what this one could not. A fragment that was
//! allocated before the failure can be sent after it, until then: it counts as sent and not delivered.
//!
//! A peer that could not be connected in the first place is reported with [`Error::Unreachable`]: nothing was lost, and
//! it may be that it had ended before.
//!
//! **Leaving.** A process that has called `finalize` sends nothing more. Its peers deliver what it sent before, complete
//! every outstanding token of it (with [`Error::PeerLeft`] where nobody took the data any more), and then call
//! `Upcalls::peer_left` once, unless they have called `peer_failed`. From the moment that the peer's goodbye is read,
//! that is perhaps before the upcall, endpoints to it answer [`Error::PeerLeft`], and nothing is sent. Its end after
//! that is no failure.
//!
//! **Trust.** Bytes from a peer are hostile. The BTL checks its own framing and disconnects a peer that breaks it;
//! what it hands up is private memory or opaque [`SharedBytes`], of which `pml` copies before it parses.
//!
//! **Devices.** A BTL's own memory never is device memory. Fragments allocated as [`FragmentKind::Device`] are
//! registered with the driver, so that copies from and to them are asynchronous.

mod capability;
mod endpoint;
mod error;
mod fragment;
mod identity;
mod modex;
pub mod process;
mod received;
mod region;
mod remains;
mod streaming;

pub use capability::{Capabilities, Cost, Flags, Mover, Operation};
pub use endpoint::{Btl, Endpoint, Offer, Sent, Token, Transfer, Upcalls};
pub use error::Error;
pub use fragment::{Fragment, FragmentKind, FragmentOwner};
pub use identity::Identity;
pub use modex::{Job, Modex, ModexError, Names};
pub use received::{Received, Retain, Retained, SharedBytes};
pub use region::{Access, Local, Packed, Region, Registration, Remote, RemoteHandle};
pub use remains::Remains;

pub use cableway_base::Rank;

/// Longest header that `pml` puts before a payload, in bytes. A BTL may count on it.
pub const MAX_HEADER: usize = 256;

/// A message so long goes by every BTL, as a fragment at least, whatever its limits are set to.
pub const MIN_MESSAGE: usize = 2 * MAX_HEADER;
