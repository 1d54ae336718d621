//! Messages that are waited for.

use cableway_base::Rank;
use cableway_pml::{Buffer, SendMode};

use super::Communicator;
use crate::buffer::{Data, RecvBuffer, SendBuffer};
use crate::error::Operation;
use crate::in_flight::InFlight;
use crate::selector::{Sender, Status, Tag, raw_rank};
use crate::{AttachedBuffer, Error, ErrorKind};

impl Communicator {
    /// Sends `buffer` to rank `to` and returns when it can be reused; that may be before the message was received.
    ///
    /// # Errors
    /// No such rank, a tag below 0, or the peer failed.
    #[inline]
    pub fn send(&self, buffer: &(impl SendBuffer + ?Sized), to: Rank, tag: i32) -> Result<(), Error> {
        self.send_as(buffer.readable(), to, tag, &SendMode::Standard)
    }

    /// As [`send`](Self::send), and returns only when the receiver has begun to receive (`MPI_Ssend`).
    ///
    /// # Errors
    /// As there.
    pub fn ssend(&self, buffer: &(impl SendBuffer + ?Sized), to: Rank, tag: i32) -> Result<(), Error> {
        self.send_as(buffer.readable(), to, tag, &SendMode::Synchronous)
    }

    /// As [`send`](Self::send); the program knows that the receive is posted already (`MPI_Rsend`).
    ///
    /// # Errors
    /// As there.
    pub fn rsend(&self, buffer: &(impl SendBuffer + ?Sized), to: Rank, tag: i32) -> Result<(), Error> {
        self.send_as(buffer.readable(), to, tag, &SendMode::Ready)
    }

    /// As [`send`](Self::send), and never waits for the receiver: what cannot leave at once is copied to `room`
    /// (`MPI_Bsend`).
    ///
    /// # Errors
    /// As there, and when `room` has no room.
    pub fn bsend(
        &self,
        buffer: &(impl SendBuffer + ?Sized),
        to: Rank,
        tag: i32,
        room: &AttachedBuffer,
    ) -> Result<(), Error> {
        self.send_as(buffer.readable(), to, tag, &room.mode())
    }

    #[inline]
    fn send_as(&self, buffer: Buffer<'_>, to: Rank, tag: i32, mode: &SendMode) -> Result<(), Error> {
        let sent = if tag < 0 { self.check_tag(tag) } else { self.send_raw(buffer, to, tag, mode) };
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(Operation::send(&buffer, to, tag).failed(error)),
        }
    }

    /// As [`send_as`](Self::send_as) without the check, for tags of our own.
    #[inline]
    pub(super) fn send_raw(
        &self,
        buffer: Buffer<'_>,
        to: Rank,
        tag: i32,
        mode: &SendMode,
    ) -> Result<(), cableway_pml::Error> {
        // SAFETY: the buffer is what a `SendBuffer` borrowed beyond this call says is readable.
        unsafe { self.engine().send(self.raw(), raw_rank(to), tag, buffer, mode) }
    }

    /// Negative tags are ours: barriers and agreements use them.
    pub(crate) fn check_tag(&self, tag: i32) -> Result<(), cableway_pml::Error> {
        if tag < 0 { Err(cableway_pml::Error::BadTag { tag }) } else { Ok(()) }
    }

    /// Receives a message into `buffer`: from one rank or [`Any`](crate::Any), with one tag or `Any`.
    ///
    /// # Errors
    /// No such rank, the peer failed, or the message was longer than the buffer, which is filled then; the rest of the
    /// message is gone.
    pub fn recv(
        &self,
        buffer: &mut (impl RecvBuffer + ?Sized),
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
    ) -> Result<Status, Error> {
        let (from, tag, buffer) = (from.into(), tag.into(), buffer.writable());
        let received = match self.check_selector(tag) {
            // SAFETY: the buffer is what a `RecvBuffer` borrowed beyond this call says is writable.
            Ok(()) => unsafe { self.engine().recv(self.raw(), from.raw(), tag.raw(), buffer) },
            Err(error) => Err(error),
        };
        match received {
            Ok(status) => Ok(Status::new(status)),
            Err(error) => Err(Operation::receive(&buffer, from, tag).failed(error)),
        }
    }

    /// Receives a message of any length.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); [`ErrorKind::BadBuffer`] for a message that is no whole number of `T`, or that there is no
    /// memory for. It is discarded then.
    pub fn recv_vec<T: Data>(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<(Vec<T>, Status), Error> {
        let message = self.mprobe(from, tag)?;
        let Some(count) = message.status().count::<T>() else {
            let (bytes, size) = (message.status().bytes, size_of::<T>());
            return Err(ErrorKind::BadBuffer(format!("a message of {bytes} bytes is no whole number of {size}")).into());
        };
        // The length is the sender's word alone.
        let values = usize::try_from(count).ok().and_then(|count| T::new_vec_zeroed(count).ok());
        let mut values = values.ok_or_else(|| {
            let bytes = message.status().bytes;
            ErrorKind::BadBuffer(format!("there is no memory for a message of {bytes} bytes, which is discarded"))
        })?;
        let status = message.recv(&mut values)?;
        Ok((values, status))
    }

    /// Sends one message and receives another, in whichever order they can be: no deadlock between ranks that do this
    /// to each other.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`recv`](Self::recv). If the send failed, the receive is cancelled.
    pub fn sendrecv(
        &self,
        send: &(impl SendBuffer + ?Sized),
        (to, send_tag): (Rank, i32),
        recv: &mut (impl RecvBuffer + ?Sized),
        (from, recv_tag): (impl Into<Sender>, impl Into<Tag>),
    ) -> Result<Status, Error> {
        let (from, recv_tag, buffer) = (from.into(), recv_tag.into(), recv.writable());
        let failed = |error| Operation::receive(&buffer, from, recv_tag).failed(error);
        self.check_selector(recv_tag).map_err(failed)?;
        let request = InFlight::new(self.engine());
        // SAFETY: `request` is new, and its drop waits, before which `recv`'s borrow does not end.
        unsafe { self.engine().irecv(self.raw(), from.raw(), recv_tag.raw(), buffer, &raw const *request) }
            .map_err(failed)?;
        if let Err(error) = self.send(send, to, send_tag) {
            request.cancel();
            return Err(error);
        }
        request.wait();
        request.result().map(Status::new).map_err(failed)
    }

    /// Waits for a message and tells what it is; it can still be received by anyone.
    ///
    /// # Errors
    /// No such rank, or the peer failed.
    pub fn probe(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<Status, Error> {
        let (from, tag) = (from.into(), tag.into());
        let found = self.check_selector(tag).and_then(|()| self.engine().probe(self.raw(), from.raw(), tag.raw()));
        found.map(Status::new).map_err(|error| Operation::probe(from, tag).failed(error))
    }

    /// As [`probe`](Self::probe), and does not wait.
    ///
    /// # Errors
    /// As there.
    pub fn iprobe(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<Option<Status>, Error> {
        let (from, tag) = (from.into(), tag.into());
        let found = self.check_selector(tag).and_then(|()| self.engine().iprobe(self.raw(), from.raw(), tag.raw()));
        found.map(|status| status.map(Status::new)).map_err(|error| Operation::probe(from, tag).failed(error))
    }

    /// Waits for a message and takes it: only the returned value can receive it, so that another thread cannot come
    /// in between.
    ///
    /// # Errors
    /// As [`probe`](Self::probe).
    pub fn mprobe(&self, from: impl Into<Sender>, tag: impl Into<Tag>) -> Result<Message<'_>, Error> {
        let (from, tag) = (from.into(), tag.into());
        let found = self.check_selector(tag).and_then(|()| self.engine().mprobe(self.raw(), from.raw(), tag.raw()));
        match found {
            Ok(inner) => Ok(Message { communicator: self, inner }),
            Err(error) => Err(Operation::probe(from, tag).failed(error)),
        }
    }

    /// As [`mprobe`](Self::mprobe), and does not wait.
    ///
    /// # Errors
    /// As there.
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

/// A message that was taken by [`Communicator::mprobe`]. Dropping it discards the message.
#[must_use = "dropping it discards the message"]
pub struct Message<'c> {
    communicator: &'c Communicator,
    inner: cableway_pml::Message,
}

impl<'c> Message<'c> {
    /// What it is.
    pub fn status(&self) -> Status {
        Status::new(self.inner.status())
    }

    /// Receives it.
    ///
    /// # Errors
    /// As [`Communicator::recv`].
    pub fn recv(self, buffer: &mut (impl RecvBuffer + ?Sized)) -> Result<Status, Error> {
        let (status, buffer) = (self.status(), buffer.writable());
        // SAFETY: the buffer is what a `RecvBuffer` borrowed beyond this call says is writable.
        let received = unsafe { self.communicator.engine().mrecv(self.inner, buffer) };
        received
            .map(Status::new)
            .map_err(|error| Operation::receive(&buffer, status.source.into(), status.tag.into()).failed(error))
    }

    pub(crate) fn into_inner(self) -> cableway_pml::Message {
        self.inner
    }
}
