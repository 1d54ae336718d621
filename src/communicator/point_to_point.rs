//! Blocking point-to-point operations.

use cableway_base::Rank;
use cableway_pml::{Buffer, SendMode};

use super::Communicator;
use crate::buffer::{RecvBuffer, SendBuffer};
use crate::data::Data;
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::selector::{Sender, Status, Tag, raw_rank};
use crate::{AttachedBuffer, Error, ErrorKind};

impl Communicator {
    /// Sends `buffer` to rank `to` and returns when the buffer can be reused (`MPI_Send`). This may be before the message
    /// is received.
    ///
    /// # Errors
    /// The communicator has no rank `to`, the tag is negative, or the peer failed.
    #[inline]
    pub fn send(&self, buffer: &(impl SendBuffer + ?Sized), to: Rank, tag: i32) -> Result<(), Error> {
        self.send_as(buffer.readable()?, to, tag, &SendMode::Standard)
    }

    /// Sends as [`send`](Self::send) does, and returns only after a receive has matched the message (`MPI_Ssend`).
    ///
    /// # Errors
    /// The same as those of [`send`](Self::send).
    pub fn ssend(&self, buffer: &(impl SendBuffer + ?Sized), to: Rank, tag: i32) -> Result<(), Error> {
        self.send_as(buffer.readable()?, to, tag, &SendMode::Synchronous)
    }

    /// Sends as [`send`](Self::send) does. The program guarantees that the receive is already posted (`MPI_Rsend`).
    ///
    /// # Errors
    /// The same as those of [`send`](Self::send).
    pub fn rsend(&self, buffer: &(impl SendBuffer + ?Sized), to: Rank, tag: i32) -> Result<(), Error> {
        self.send_as(buffer.readable()?, to, tag, &SendMode::Ready)
    }

    /// Sends as [`send`](Self::send) does, without waiting for the receiver (`MPI_Bsend`). A message that cannot be sent
    /// at once is copied to `room`.
    ///
    /// # Errors
    /// The same as those of [`send`](Self::send), and `room` has too little space left.
    pub fn bsend(
        &self,
        buffer: &(impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
        room: &AttachedBuffer,
    ) -> Result<(), Error> {
        self.send_as(buffer.readable()?, to, tag, &room.mode())
    }

    #[inline]
    fn send_as(&self, buffer: Buffer<'_>, to: Rank, tag: i32, mode: &SendMode) -> Result<(), Error> {
        let sent = if tag < 0 { self.check_tag(tag) } else { self.send_raw(buffer, to, tag, mode) };
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(Operation::send(&buffer, to, tag).failed(error)),
        }
    }

    /// Sends without checking the tag, so that reserved tags can be used.
    #[inline]
    pub(super) fn send_raw(
        &self,
        buffer: Buffer<'_>,
        to: Rank,
        tag: i32,
        mode: &SendMode,
    ) -> Result<(), cableway_pml::Error> {
        // SAFETY: the buffer comes from a `SendBuffer`, which is borrowed for longer than this call.
        unsafe { self.engine().send(self.raw(), raw_rank(to), tag, buffer, mode) }
    }

    /// Refuses negative tags, which are reserved for collective operations.
    pub(crate) fn check_tag(&self, tag: i32) -> Result<(), cableway_pml::Error> {
        if tag < 0 { Err(cableway_pml::Error::BadTag { tag }) } else { Ok(()) }
    }

    /// Receives a message into `buffer` (`MPI_Recv`), from one rank or [`Any`](crate::Any), with one tag or `Any`.
    ///
    /// The message may be shorter than the buffer; [`Status::bytes`] tells its length.
    ///
    /// # Errors
    /// The communicator has no such rank, the tag is negative, the peer failed, or the message was longer than the buffer.
    /// In the last case the buffer is filled and the rest of the message is discarded.
    pub fn recv(
        &self,
        buffer: &mut (impl RecvBuffer + ?Sized),
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<Status, Error> {
        let (from, tag, buffer) = (from.into(), tag.into(), buffer.writable()?);
        let received = match self.check_selector(tag) {
            // SAFETY: the buffer comes from a `RecvBuffer`, which is borrowed exclusively for longer than this call.
            Ok(()) => unsafe { self.engine().recv(self.raw(), from.raw(), tag.raw(), buffer) },
            Err(error) => Err(error),
        };
        match received {
            Ok(status) => Ok(Status::new(status)),
            Err(error) => Err(Operation::receive(&buffer, from, tag).failed(error)),
        }
    }

    /// Receives a message of any length into a new vector.
    ///
    /// # Errors
    /// The same as those of [`recv`](Self::recv). [`ErrorKind::BadBuffer`] if the length of the message is not a multiple
    /// of the size of `T`, or if there is not enough memory for it; the message is then discarded.
    pub fn recv_vec<T: Data>(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<(Vec<T>, Status), Error> {
        let message = self.mprobe(from, tag)?;
        let Some(count) = message.status().count::<T>() else {
            let (bytes, size) = (message.status().bytes, size_of::<T>());
            return Err(ErrorKind::BadBuffer(format!(
                "a message of {bytes} bytes is discarded: its length is not a multiple of {size} bytes"
            ))
            .into());
        };
        // The length comes from the sender and may be too large to allocate.
        let values = usize::try_from(count).ok().and_then(|count| T::new_vec_zeroed(count).ok());
        let mut values = values.ok_or_else(|| {
            let bytes = message.status().bytes;
            ErrorKind::BadBuffer(format!("no memory for a message of {bytes} bytes, which is discarded"))
        })?;
        let status = message.recv(&mut values)?;
        Ok((values, status))
    }

    /// Sends one message and receives another at the same time (`MPI_Sendrecv`). Ranks that do this to each other do not
    /// deadlock.
    ///
    /// # Errors
    /// The same as those of [`send`](Self::send) and [`recv`](Self::recv). If the send fails, the receive is cancelled.
    pub fn sendrecv(
        &self,
        send: &(impl SendBuffer + ?Sized),
        (to, send_tag): (Rank, i32),
        recv: &mut (impl RecvBuffer + ?Sized),
        (from, recv_tag): (impl Into<Sender>, impl Into<Tag>),
    ) -> Result<Status, Error> {
        let (from, recv_tag, buffer) = (from.into(), recv_tag.into(), recv.writable()?);
        let failed = |error| Operation::receive(&buffer, from, recv_tag).failed(error);
        self.check_selector(recv_tag).map_err(failed)?;
        let request = InFlight::new(self.engine());
        // SAFETY: `request` is new. Its drop waits for the receive, and `recv` stays borrowed until then.
        unsafe { self.engine().irecv(self.raw(), from.raw(), recv_tag.raw(), buffer, &raw const *request) }
            .map_err(failed)?;
        if let Err(error) = self.send(send, to, send_tag) {
            request.cancel();
            return Err(error);
        }
        request.wait();
        request.result().map(Status::new).map_err(failed)
    }

    /// Waits for a message and returns its status without receiving it (`MPI_Probe`). Another thread may receive it first;
    /// use [`mprobe`](Self::mprobe) to prevent that.
    ///
    /// # Errors
    /// The communicator has no such rank, the tag is negative, or the peer failed.
    pub fn probe(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<Status, Error> {
        let (from, tag) = (from.into(), tag.into());
        let found = self.check_selector(tag).and_then(|()| self.engine().probe(self.raw(), from.raw(), tag.raw()));
        found.map(Status::new).map_err(|error| Operation::probe(from, tag).failed(error))
    }

    /// Returns the status of a message that has arrived, if there is one, without receiving it (`MPI_Iprobe`).
    ///
    /// # Errors
    /// The same as those of [`probe`](Self::probe).
    pub fn iprobe(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<Option<Status>, Error> {
        let (from, tag) = (from.into(), tag.into());
        let found = self.check_selector(tag).and_then(|()| self.engine().iprobe(self.raw(), from.raw(), tag.raw()));
        found.map(|status| status.map(Status::new)).map_err(|error| Operation::probe(from, tag).failed(error))
    }

    /// Waits for a message and takes it (`MPI_Mprobe`). Only the returned value can receive it, so that no other thread
    /// receives it first.
    ///
    /// # Errors
    /// The same as those of [`probe`](Self::probe).
    pub fn mprobe(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<Message<'_>, Error> {
        let (from, tag) = (from.into(), tag.into());
        let found = self.check_selector(tag).and_then(|()| self.engine().mprobe(self.raw(), from.raw(), tag.raw()));
        match found {
            Ok(inner) => Ok(Message { communicator: self, inner }),
            Err(error) => Err(Operation::probe(from, tag).failed(error)),
        }
    }

    /// Takes a message that has arrived, if there is one (`MPI_Improbe`).
    ///
    /// # Errors
    /// The same as those of [`probe`](Self::probe).
    pub fn improbe(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<Option<Message<'_>>, Error> {
        let (from, tag) = (from.into(), tag.into());
        let found = self.check_selector(tag).and_then(|()| self.engine().improbe(self.raw(), from.raw(), tag.raw()));
        match found {
            Ok(found) => Ok(found.map(|inner| Message { communicator: self, inner })),
            Err(error) => Err(Operation::probe(from, tag).failed(error)),
        }
    }

    pub(crate) fn check_selector(&self, tag: Tag) -> Result<(), cableway_pml::Error> {
        tag.tag().map_or(Ok(()), |tag| self.check_tag(tag))
    }
}

/// A message taken by [`Communicator::mprobe`]. Dropping it discards the message.
#[must_use = "dropping it discards the message"]
pub struct Message<'c> {
    communicator: &'c Communicator,
    inner: cableway_pml::Message,
}

impl<'c> Message<'c> {
    /// Returns the source, tag and length of the message.
    pub fn status(&self) -> Status {
        Status::new(self.inner.status())
    }

    /// Receives the message into `buffer` (`MPI_Mrecv`).
    ///
    /// # Errors
    /// The same as those of [`Communicator::recv`].
    pub fn recv(self, buffer: &mut (impl RecvBuffer + ?Sized)) -> Result<Status, Error> {
        let (status, buffer) = (self.status(), buffer.writable()?);
        // SAFETY: the buffer comes from a `RecvBuffer`, which is borrowed exclusively for longer than this call.
        let received = unsafe { self.communicator.engine().mrecv(self.inner, buffer) };
        received
            .map(Status::new)
            .map_err(|error| Operation::receive(&buffer, status.source.into(), status.tag.into()).failed(error))
    }

    pub(crate) fn into_inner(self) -> cableway_pml::Message {
        self.inner
    }
}
