//! The traits of a transport and of its links, and the upcalls.

use std::os::fd::BorrowedFd;

use cableway_base::Rank;
use cableway_common_cuda::{Exported, Location};

use crate::{
    Access, Capabilities, Cost, DeviceMapping, Distance, Error, Fragment, FragmentKind, Local, Mapping, Mover,
    Operation, Received, Region, Registration, Remains, Remote, RemoteHandle,
};

/// One transport of this process. The crate's documentation states the contract.
pub trait Btl: Send + Sync {
    /// Returns the name in parameters and for users, such as `sm`. A transport may consist of several modules that fail
    /// independently and have one name.
    fn name(&self) -> &'static str;

    /// Returns the name of this module for users, if its transport has several.
    fn label(&self) -> String {
        self.name().to_owned()
    }

    /// Returns the card: the data that peers need to reach this process, published through the modex. It is opaque to
    /// all but this transport, and equal in all modules of one name.
    fn card(&self) -> Vec<u8>;

    /// Returns the estimated cost of a message of host memory to a process of this node (`here`), or of another node.
    /// Returns `None` if this transport reaches none there. Unlike [`Endpoint::cost`] it needs no peer.
    fn expected(&self, here: bool) -> Option<Cost> {
        let _ = here;
        None
    }

    /// Returns links to `peer`, given its card. Returns none if this transport cannot reach it. Does not connect yet.
    ///
    /// # Errors
    /// The card is malformed.
    fn connect(&self, peer: Rank, card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error>;

    /// Returns the index of the network of this module, among all networks that this process and `peer` share, if the
    /// transport has several modules. Both ends use the same index, whatever other modules they have. Returns `None` if
    /// the peer has no module on this network. Call `connect` first.
    fn place(&self, peer: Rank) -> Option<u8> {
        let _ = peer;
        Some(0)
    }

    /// Allocates `len` bytes of zeros that processes of this node can map ([`Endpoint::map`]), from the beginning of a
    /// page on. Returns `None` if this transport shares no memory. A forked child finds zeros there.
    ///
    /// # Errors
    /// The system refused.
    fn allocate(&self, len: usize) -> Result<Option<Mapping>, Error> {
        let _ = len;
        Ok(None)
    }

    /// Returns whether these bytes lie in one allocation that [`allocate`](Self::allocate) made and that still exists.
    fn is_mappable(&self, address: *const u8, len: usize) -> bool {
        let _ = (address, len);
        false
    }

    /// Returns whether an established connection with `peer` may still deliver messages: the peer has neither left nor
    /// failed.
    fn is_connected(&self, peer: Rank) -> bool;

    /// Breaks the connection with `peer`, as after a failure here. Call it when another transport reports that the peer
    /// failed. [`Upcalls::peer_failed`] follows.
    fn break_off(&self, peer: Rank) {
        let _ = peer;
    }

    /// Returns the remains of the links to `peer`, once, after it was reported as failed. Returns `None` if they are
    /// unknown.
    fn remains(&self, peer: Rank) -> Option<Remains> {
        let _ = peer;
        None
    }

    /// Delivers and completes everything that is ready. Returns the number of events. Never blocks.
    fn progress(&self, upcalls: &dyn Upcalls) -> usize;

    /// Prepares for a sleep: adds descriptors that become readable when [`progress`](Self::progress) has new work.
    /// Earlier events need not make them readable. So call `progress` after this, and sleep only if it finds nothing.
    /// An event that another thread's `progress` handles meanwhile need not wake the sleeper either, so limit the
    /// sleep.
    ///
    /// Returns false if some work only needs time, or if no descriptor exists. Then poll instead.
    fn arm<'a>(&'a self, wakers: &mut Vec<BorrowedFd<'a>>) -> bool {
        let _ = wakers;
        false
    }

    /// Tells peers that this process leaves, so that they do not take its silence for a failure. Earlier messages are
    /// passed to the system or stay readable by the peer. `progress` may be called meanwhile. Returns whether
    /// everything is flushed. If not, call it again after `progress`.
    fn finalize(&self) -> bool;
}

/// The events that a BTL reports within [`Btl::progress`]. `pml` implements them.
pub trait Upcalls {
    /// Receives a message from `peer`, header first.
    fn receive(&self, peer: Rank, message: Received<'_>);

    /// Completes the `put`, `get` or `send_in_place` with `token`, perhaps with an error. The BTL does not access its
    /// memory again.
    fn completed(&self, token: Token, result: Result<(), Error>);

    /// Reports that this BTL cannot reach `peer`: the peer died or broke the protocol, or, with [`Error::Unreachable`],
    /// was never connected.
    fn peer_failed(&self, peer: Rank, error: Error);

    /// Reports that `peer` has left (its [`Btl::finalize`]), and that everything that it sent through this BTL was
    /// delivered.
    fn peer_left(&self, peer: Rank);
}

/// A caller's name for an operation in flight. Opaque to the BTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Work that exactly one of two processes does: see [`Endpoint::offer`]. It travels in `pml`'s headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer(pub u64);

/// Says whether a message was accepted.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The message is sent. The source may be reused.
    Done,
    /// The link is busy. The call had no effect.
    Busy,
}

/// The start of a `put`, `get` or `send_in_place`.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It is complete. `completed` will not be called.
    Done,
    /// It is in flight. `completed` will be called with the token.
    Started,
    /// The link is busy. The call had no effect.
    Busy,
}

/// One link to a peer. Dropping it closes the link cleanly.
pub trait Endpoint: Send {
    /// Returns the peer.
    fn peer(&self) -> Rank;

    /// Returns the abilities and limits of this link.
    fn capabilities(&self) -> &Capabilities;

    /// Begins to connect, as the first send would. So a process that only receives detects the peer. [`Upcalls`] report
    /// the result.
    ///
    /// # Errors
    /// The link failed, or the peer has left.
    fn connect(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Maps memory that the peer has registered, if it lies in memory of the peer's [`Btl::allocate`]. The mapping begins
    /// at the first registered byte and ends with the last one. Returns `None` if this process cannot map it.
    fn map(&mut self, handle: &RemoteHandle) -> Option<Mapping> {
        let _ = handle;
        None
    }

    /// Maps device memory that the peer has registered for `access`, so that kernels in the context of `into` access all
    /// of it. Returns `None` if this process cannot map it, or does not map it yet: a later call may.
    ///
    /// # Errors
    /// The link failed.
    fn map_device(
        &mut self,
        handle: &RemoteHandle,
        access: Access,
        into: &Location,
    ) -> Result<Option<DeviceMapping>, Error> {
        let _ = (handle, access, into);
        Ok(None)
    }

    /// Describes device memory that the peer has registered for this access, so that devices of this process can map it:
    /// the allocation, and the offset in it of the first of `len` registered bytes. Returns `None` for other memory, and if
    /// devices reach it in another way.
    fn exported(&self, handle: &RemoteHandle, access: Access, len: usize) -> Option<(Exported, u64)> {
        let _ = (handle, access, len);
        None
    }

    /// Estimates the time of an operation with `location` as the local side, for choosing among protocols.
    fn cost(&self, operation: Operation, location: &Location) -> Cost;

    /// Estimates the time for a message between the buffer at `local` and the peer's registered memory, if `mover`
    /// moves it. The peer's estimate may differ.
    fn transfer_cost(&self, mover: Mover, local: &Location, _remote: &RemoteHandle) -> Cost {
        self.cost(mover.operation(), local)
    }

    /// Returns whether a copy between the buffer at `local` and the peer's registered memory would wait for a turn on a device
    /// for longer than `len` bytes take through host memory.
    fn waits_for_turn(&self, _local: &Location, _remote: &RemoteHandle, _len: u64) -> bool {
        false
    }

    /// Returns how far this process's processors are from the peer's. Returns `None` as long as the transport does not
    /// know, and for peers of other nodes. The answer costs system calls, so callers keep it.
    fn distance(&self) -> Option<Distance> {
        None
    }

    /// Returns notes for users about the data path of this link, one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Sends `header` followed by `payload`, together at most `inline_limit` bytes of host memory.
    ///
    /// # Errors
    /// The link failed.
    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error>;

    /// Allocates a fragment with room for `len` bytes, including the header. Returns `None` while the link is busy.
    ///
    /// # Errors
    /// The link failed.
    fn alloc(&mut self, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error>;

    /// Sends the first `len` bytes of a fragment of this endpoint. This is always accepted, because `alloc` reserved
    /// room.
    ///
    /// # Errors
    /// The link failed.
    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error>;

    /// Sends `header`, then the bytes of `payload` from their place. Together they have at most the larger of
    /// `max_send_size` and `device_max_send_size`, because the receiver may copy the data to a device.
    ///
    /// # Safety
    /// The payload's memory stays valid and unchanged until completion.
    ///
    /// # Errors
    /// The link failed, or it lacks `SEND_IN_PLACE`.
    unsafe fn send_in_place(&mut self, _header: &[u8], _payload: Region, _token: Token) -> Result<Transfer, Error> {
        Err(Error::Unavailable {
            btl: "btl",
            operation: "send_in_place",
            reason: "this transport does not support it".into(),
        })
    }

    /// Registers memory for the peer's `put` or `get` until the registration is dropped. Returns `None` if this memory
    /// cannot be registered; use another protocol then.
    ///
    /// # Safety
    /// The region stays valid while it is registered. No other code accesses it in conflict with `access`.
    ///
    /// # Errors
    /// The link failed.
    unsafe fn register(&mut self, _region: Region, _access: Access) -> Result<Option<Registration>, Error> {
        Ok(None)
    }

    /// Reads memory that the peer has registered.
    ///
    /// # Safety
    /// The local memory stays valid, and no other code accesses it, until completion. No two of its blocks overlap.
    ///
    /// # Errors
    /// The link failed. [`Error::Unavailable`], for example if the kernel refuses or the link lacks blocks: nothing was
    /// transferred; use another protocol.
    unsafe fn get(&mut self, _to: &Local<'_>, _from: &Remote<'_>, _token: Token) -> Result<Transfer, Error> {
        Err(Error::Unavailable { btl: "btl", operation: "get", reason: "this transport does not support it".into() })
    }

    /// Writes memory that the peer has registered.
    ///
    /// # Safety
    /// The local memory stays valid and unchanged until completion.
    ///
    /// # Errors
    /// As `get`.
    unsafe fn put(&mut self, _from: &Local<'_>, _to: &Remote<'_>, _token: Token) -> Result<Transfer, Error> {
        Err(Error::Unavailable { btl: "btl", operation: "put", reason: "this transport does not support it".into() })
    }

    /// Offers work to the peer, which learns of it by a message. Either the peer's `claim` or this side's `withdraw`
    /// succeeds. Returns `None` if too many offers exist, or the link lacks `OFFER`.
    fn offer(&mut self) -> Option<Offer> {
        None
    }

    /// Claims an offer of the peer. Returns false if it was withdrawn, or if the link lacks `OFFER`.
    fn claim(&mut self, _offer: Offer) -> bool {
        false
    }

    /// Withdraws an own offer. Call it once for each. Returns true if the peer has not claimed it and no longer can.
    ///
    /// # Errors
    /// The link failed.
    fn withdraw(&mut self, _offer: Offer) -> Result<bool, Error> {
        Ok(false)
    }
}
