//! A transport, its links, and what it reports.

use std::os::fd::BorrowedFd;

use cableway_base::Rank;
use cableway_common_cuda::Location;

use crate::{
    Access, Capabilities, Cost, Error, Fragment, FragmentKind, Local, Mover, Operation, Received, Region, Registration,
    Remains, Remote, RemoteHandle,
};

/// One transport of this process. See the crate's documentation for what holds.
pub trait Btl: Send + Sync {
    /// The name that parameters and users know it by, such as `sm`. A transport may be several modules, each of which fails
    /// by itself: they have one name.
    fn name(&self) -> &'static str;

    /// Returns the name of this module for users, if its transport has several.
    fn label(&self) -> String {
        self.name().to_owned()
    }

    /// What peers need in order to reach this process, to be published through the modex; opaque to all but this
    /// transport. The same for all modules of one name.
    fn card(&self) -> Vec<u8>;

    /// Links to `peer`, given its card; empty if it cannot be reached this way. Does not connect yet.
    ///
    /// # Errors
    /// The card is malformed.
    fn connect(&self, peer: Rank, card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error>;

    /// Which network, of those between this process and `peer`, this module and one of the peer's have for themselves,
    /// where transports of this name are several modules: counted alike at both ends, whatever modules these have besides.
    /// None: no module of the peer's is on this one's. It may be asked once `connect` was called.
    fn place(&self, peer: Rank) -> Option<u8> {
        let _ = peer;
        Some(0)
    }

    /// Whether a connection with `peer` is established that may still deliver something: the peer has neither left nor
    /// failed.
    fn hears(&self, peer: Rank) -> bool;

    /// Breaks the connection with `peer`, as if it had failed here. Call it after another transport reported a failure
    /// at the peer. [`Upcalls::peer_failed`] follows.
    fn break_off(&self, peer: Rank) {
        let _ = peer;
    }

    /// Returns the remains of the links to `peer` after it was reported as failed, once. None: they are unknown.
    fn remains(&self, peer: Rank) -> Option<Remains> {
        let _ = peer;
        None
    }

    /// Delivers and completes what is ready; returns how many events there were. Never blocks.
    fn progress(&self, upcalls: &dyn Upcalls) -> usize;

    /// Prepares for a sleep: adds what becomes readable as soon as there is something for [`progress`](Self::progress) to
    /// do. What came before need not make it so: who sleeps calls `progress` in between, and sleeps only if that found
    /// nothing. What another thread's `progress` takes meanwhile is no sign either, so that nobody sleeps for long.
    ///
    /// False: there is something to do that only time brings, or nothing here wakes anybody; it must be polled.
    fn arm<'a>(&'a self, wakers: &mut Vec<BorrowedFd<'a>>) -> bool {
        let _ = wakers;
        false
    }

    /// Tells peers that this process ends in good order, after which they do not take its silence for death. What was
    /// sent before has been handed to the system or stays readable by the peer. `progress` may be called meanwhile.
    /// Returns whether all is flushed; call again after `progress` until it is.
    fn finalize(&self) -> bool;
}

/// The reports of a BTL from within [`Btl::progress`]. `pml` implements them.
pub trait Upcalls {
    /// A message from `peer`, header first.
    fn receive(&self, peer: Rank, message: Received<'_>);

    /// The `put`, `get` or `send_in_place` that was started with `token` is done, or failed and will touch its memory
    /// no more.
    fn completed(&self, token: Token, result: Result<(), Error>);

    /// Nothing can reach `peer` through this BTL any more: it died, broke the rules, or, with
    /// [`Error::Unreachable`], was never connected.
    fn peer_failed(&self, peer: Rank, error: Error);

    /// `peer` has ended in good order (its [`Btl::finalize`]), and everything that it sent through this BTL has been
    /// delivered.
    fn peer_left(&self, peer: Rank);
}

/// A caller's name for an operation under way; opaque to the BTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// Work that exactly one of two processes will do: see [`Endpoint::offer`]. It travels in `pml`'s headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer(pub u64);

/// Whether a message was taken.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way; the source may be reused.
    Done,
    /// Not now: nothing happened.
    Busy,
}

/// How a `put`, `get` or `send_in_place` began.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Finished already: `completed` will not be called.
    Done,
    /// Under way: `completed` will be called with the token.
    Started,
    /// Not now: nothing happened.
    Busy,
}

/// One link to a peer. Dropping it closes the link in good order.
pub trait Endpoint: Send {
    /// The peer.
    fn peer(&self) -> Rank;

    /// What this link can do.
    fn capabilities(&self) -> &Capabilities;

    /// Begins to connect, as the first send would: how a process that only receives finds out that the peer is there.
    /// What comes of it, [`Upcalls`] tell.
    ///
    /// # Errors
    /// The link failed, or the peer has left.
    fn connect(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Time that an operation takes where `location` is the local side, for choosing among protocols.
    fn cost(&self, operation: Operation, location: &Location) -> Cost;

    /// Time that a message takes between the buffer at `local` and what the peer has registered for it, if `mover` moves
    /// it. What the peer expects may differ.
    fn transfer_cost(&self, mover: Mover, local: &Location, _remote: &RemoteHandle) -> Cost {
        self.cost(mover.operation(), local)
    }

    /// Returns notes for users about how this link moves data, a line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Sends `header` followed by `payload`, together at most `inline_limit` bytes of host memory.
    ///
    /// # Errors
    /// The link failed.
    fn send_inline(&mut self, header: &[u8], payload: &[u8]) -> Result<Sent, Error>;

    /// A fragment with room for `len` bytes, the header included. None: not now.
    ///
    /// # Errors
    /// The link failed.
    fn alloc(&mut self, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error>;

    /// Sends the first `len` bytes of a fragment of this endpoint. Always taken: `alloc` made room.
    ///
    /// # Errors
    /// The link failed.
    fn send(&mut self, fragment: Fragment, len: usize) -> Result<(), Error>;

    /// Sends `header`, then the bytes of `payload` from where they are: together at most the larger of `max_send_size`
    /// and `device_max_send_size`, for the data may go to a device.
    ///
    /// # Safety
    /// The payload's memory stays valid and unwritten until completed.
    ///
    /// # Errors
    /// The link failed, or it has no `SEND_IN_PLACE`.
    unsafe fn send_in_place(&mut self, _header: &[u8], _payload: Region, _token: Token) -> Result<Transfer, Error> {
        Err(Error::Unavailable { btl: "btl", operation: "send_in_place", reason: "this transport has none".into() })
    }

    /// Makes memory reachable for the peer's `put` or `get`, until the registration is dropped. `None`: not possible
    /// for this memory, another protocol must be taken.
    ///
    /// # Safety
    /// The region stays valid while registered, and nobody else touches it in a way that `access` conflicts with.
    ///
    /// # Errors
    /// The link failed.
    unsafe fn register(&mut self, _region: Region, _access: Access) -> Result<Option<Registration>, Error> {
        Ok(None)
    }

    /// Fetches from memory that the peer has registered.
    ///
    /// # Safety
    /// The local memory stays valid and untouched by others until completed; no two blocks of it have a byte in common.
    ///
    /// # Errors
    /// The link failed; or [`Error::Unavailable`] (the kernel refused, say, or the link has no blocks): nothing was
    /// transferred, and another protocol must be taken.
    unsafe fn get(&mut self, _to: &Local<'_>, _from: &Remote<'_>, _token: Token) -> Result<Transfer, Error> {
        Err(Error::Unavailable { btl: "btl", operation: "get", reason: "this transport has none".into() })
    }

    /// Stores in memory that the peer has registered.
    ///
    /// # Safety
    /// The local memory stays valid and unwritten until completed.
    ///
    /// # Errors
    /// As `get`.
    unsafe fn put(&mut self, _from: &Local<'_>, _to: &Remote<'_>, _token: Token) -> Result<Transfer, Error> {
        Err(Error::Unavailable { btl: "btl", operation: "put", reason: "this transport has none".into() })
    }

    /// Offers a piece of work to the peer, which is told of it by a message. Whichever comes first gets it: the peer's
    /// `claim`, or our `withdraw`. None: too many are on offer, or the link has no `OFFER`.
    fn offer(&mut self) -> Option<Offer> {
        let offer = self.prepare_offer()?;
        self.open_offer(offer);
        Some(offer)
    }

    /// The same, but nobody can claim it before it is [opened](Self::open_offer): so that the peer can be told already, and
    /// looks whether it is. `withdraw` ends it in any case.
    fn prepare_offer(&mut self) -> Option<Offer> {
        None
    }

    /// Lets the peer claim what was prepared, once for each.
    fn open_offer(&mut self, _offer: Offer) {}

    /// Claims what the peer has offered; false if it is not open, or has been withdrawn, or the link has no `OFFER`.
    fn claim(&mut self, _offer: Offer) -> bool {
        false
    }

    /// Withdraws an own offer, once for each. Returns true if the peer has not claimed it and cannot any more.
    ///
    /// # Errors
    /// The link failed.
    fn withdraw(&mut self, _offer: Offer) -> Result<bool, Error> {
        Ok(false)
    }
}
