//! Messages in the order of a stream, on memory that the caller keeps.

use std::sync::Arc;

use cableway_base::Rank;
use cableway_common_cuda::Vendor;
use cableway_pml::{Place, Prepared, PreparedPath, Signal, StreamBatch, StreamMessage};

use super::RawRequest;
use crate::buffer::sealed::{Readable, Writable};
use crate::communicator::Communicator;
use crate::error::{ErrorKind, Operation};
use crate::registration::RegisteredMemory;
use crate::selector::{Sender, Tag, raw_rank};
use crate::stream::{Kept, KeptList, StreamRef, add_put, add_receive, add_send};
use crate::world::World;
use crate::{Error, RawBuffer};

/// A stream of the program, on memory that no lifetime protects. Rust programs use a [`StreamScope`](crate::StreamScope).
///
/// Calls add to the stream and return at once. Every method may be called from any thread. Its drop waits until the stream
/// has passed all calls and all messages are over.
pub struct RawStream {
    stream: StreamRef,
    kept: KeptList,
}

/// A send or receive that is posted on its stream many times. Its drop waits until the stream has passed all posts.
pub struct RawPrepared {
    // Dropped before the communicator, on which it ends.
    prepared: Prepared,
    operation: Operation,
    _communicator: Communicator,
}

impl RawStream {
    /// Describes a stream; see [`World::stream`].
    ///
    /// # Safety
    /// The stream exists until the value and every [`RawPrepared`] made from it is dropped. Memory that a call names stays
    /// valid until the stream has passed the call and its message is over, and memory of a [`RawPrepared`] until that is
    /// dropped. Meanwhile only earlier and later work of the stream uses it conflictingly.
    ///
    /// # Errors
    /// As [`World::stream`].
    pub unsafe fn new<S>(world: &World, vendor: Vendor, handle: *mut S) -> Result<RawStream, Error> {
        // SAFETY: the caller's promise.
        let stream = unsafe { world.stream(vendor, handle) }?;
        Ok(RawStream { stream, kept: KeptList::default() })
    }

    /// Returns the stream, for operations on words and mappings.
    pub fn stream(&self) -> &StreamRef {
        &self.stream
    }

    /// Sends when the stream gets there. Its later work begins when the buffer can be reused.
    ///
    /// # Errors
    /// As [`StreamScope::send`](crate::StreamScope::send).
    pub fn send(&self, buffer: &RawBuffer<'_>, to: Rank, tag: i32, on: &Communicator) -> Result<(), Error> {
        self.add_send(buffer, (to, tag), on, true).map(drop)
    }

    /// Receives when the stream gets there. Its later work begins when the message is in the buffer.
    ///
    /// # Errors
    /// As [`StreamScope::recv`](crate::StreamScope::recv).
    pub fn recv(
        &self,
        buffer: &mut RawBuffer<'_>,
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
        on: &Communicator,
    ) -> Result<(), Error> {
        self.add_receive(buffer, (from.into(), tag.into()), on, true).map(drop)
    }

    /// Sends when the stream gets there, which goes on at once.
    ///
    /// # Errors
    /// As [`send`](Self::send). The request returns later failures, too.
    pub fn isend(&self, buffer: &RawBuffer<'_>, to: Rank, tag: i32, on: &Communicator) -> Result<RawRequest, Error> {
        let (message, operation) = self.add_send(buffer, (to, tag), on, false)?;
        Ok(RawRequest::of_stream(on, message, operation))
    }

    /// Receives when the stream gets there, which goes on at once.
    ///
    /// # Errors
    /// As [`recv`](Self::recv). The request returns later failures, too.
    pub fn irecv(
        &self,
        buffer: &mut RawBuffer<'_>,
        from: impl Into<Sender>,
        tag: impl Into<Tag>,
        on: &Communicator,
    ) -> Result<RawRequest, Error> {
        let (message, operation) = self.add_receive(buffer, (from.into(), tag.into()), on, false)?;
        Ok(RawRequest::of_stream(on, message, operation))
    }

    /// Makes the stream wait until messages are over that streams of this process have started.
    ///
    /// # Errors
    /// A request is not of such a message, an earlier message on the stream failed and no one was told, or the driver
    /// refused. Nothing was added then.
    pub fn wait(&self, requests: &[&RawRequest]) -> Result<(), Error> {
        let message = |(at, request): (usize, &&RawRequest)| match request.stream_message() {
            Some(message) => Ok(message.clone()),
            None => {
                let reason = format!("request {at} is of no message on a stream: wait for it on the host");
                Err(Error::from(ErrorKind::BadBuffer(reason)))
            }
        };
        let messages: Vec<Arc<StreamMessage>> = requests.iter().enumerate().map(message).collect::<Result<_, _>>()?;
        let messages: Vec<&StreamMessage> = messages.iter().map(|message| &**message).collect();
        Ok(self.stream.stream.wait(&messages)?)
    }

    /// Puts when the stream gets there, and then gives the signal. Its later work begins when both are done at the target.
    ///
    /// # Errors
    /// As [`StreamScope::put`](crate::StreamScope::put).
    pub fn put(&self, from: &RawBuffer<'_>, to: Place<'_>, signal: Option<Signal<'_>>) -> Result<(), Error> {
        let from = from.readable()?;
        let operation = Operation::one_sided("put", &to, from.len());
        let by = &self.stream.world.one_sided;
        // SAFETY: the promise of `new`'s caller.
        let put = |batch: &mut StreamBatch<'_>| unsafe { add_put(batch, by, from, to, signal) };
        match self.stream.add(operation, put)? {
            Some(message) => self.kept.keep(Kept { message: Arc::new(message), operation, _communicator: None }),
            None => by.note_stream_put(),
        }
        Ok(())
    }

    /// Makes the stream wait for a signal; see [`StreamScope::wait_signal`](crate::StreamScope::wait_signal). The memory
    /// stays registered until the stream has passed the call.
    ///
    /// # Errors
    /// As there.
    pub fn wait_signal(&self, memory: &RegisteredMemory, offset: u64, value: u64, from: Rank) -> Result<(), Error> {
        let place = memory.key().at(offset);
        let operation = Operation { peer: Some(from), ..Operation::one_sided("wait for a signal", &place, 8) };
        let by = &self.stream.world.one_sided;
        let wait = |batch: &mut StreamBatch<'_>| {
            // SAFETY: the promise of `new`'s caller.
            unsafe { batch.wait_signal(by, memory.raw(), offset, value, from) }
        };
        let message = Arc::new(self.stream.add(operation, wait)?);
        self.kept.keep(Kept { message, operation, _communicator: None });
        Ok(())
    }

    /// Prepares a send; see [`StreamScope::prepare_send`](crate::StreamScope::prepare_send).
    ///
    /// # Errors
    /// As there.
    pub fn prepare_send(
        &self,
        buffer: &RawBuffer<'_>,
        to: Rank,
        tag: i32,
        on: &Communicator,
    ) -> Result<RawPrepared, Error> {
        let buffer = buffer.readable()?;
        let operation = Operation::send(&buffer, to, tag);
        // SAFETY: the promise of `new`'s caller.
        let prepared = unsafe { self.stream.stream.prepare_send(on.raw(), raw_rank(to), tag, buffer) };
        let prepared = prepared.map_err(|error| operation.failed(error))?;
        Ok(RawPrepared { prepared, operation, _communicator: on.clone() })
    }

    /// Prepares a receive; see [`StreamScope::prepare_recv`](crate::StreamScope::prepare_recv).
    ///
    /// # Errors
    /// As there.
    pub fn prepare_recv(
        &self,
        buffer: &mut RawBuffer<'_>,
        from: Rank,
        tag: i32,
        on: &Communicator,
    ) -> Result<RawPrepared, Error> {
        let buffer = buffer.writable()?;
        let operation = Operation::receive(&buffer, Sender::from(from), Tag::from(tag));
        // SAFETY: the promise of `new`'s caller.
        let prepared = unsafe { self.stream.stream.prepare_recv(on.raw(), raw_rank(from), tag, buffer) };
        let prepared = prepared.map_err(|error| operation.failed(error))?;
        Ok(RawPrepared { prepared, operation, _communicator: on.clone() })
    }

    /// Posts prepared operations of this stream in their order; see [`StreamScope::post`](crate::StreamScope::post).
    ///
    /// # Errors
    /// As there.
    pub fn post(&self, messages: &[&RawPrepared]) -> Result<(), Error> {
        messages.iter().try_for_each(|message| message.agree().map(drop))?;
        let mut batch = self.stream.stream.batch()?;
        for message in messages {
            batch.prepared(&message.prepared).map_err(|error| message.operation.failed(error))?;
        }
        Ok(batch.post()?)
    }

    /// Waits on the calling thread until the stream has passed all calls so far and all messages are over.
    ///
    /// # Errors
    /// An earlier message on the stream failed and no one was told, or the driver refused.
    pub fn finish(&self) -> Result<(), Error> {
        let stream = &self.stream.stream;
        stream.mark().and_then(|mark| stream.wait_for_mark(mark))?;
        // The thread notes an error for later calls only after the message is over.
        let untold = |kept: Kept| kept.message.untold().map(|error| kept.operation.failed(error));
        let failed = self.kept.wait().into_iter().find_map(untold);
        failed.map_or_else(|| self.stream.check(), Err)
    }

    fn add_send(
        &self,
        buffer: &RawBuffer<'_>,
        to: (Rank, i32),
        on: &Communicator,
        blocks: bool,
    ) -> Result<(Arc<StreamMessage>, Operation), Error> {
        let buffer = buffer.readable()?;
        let operation = Operation::send(&buffer, to.0, to.1);
        // SAFETY: the promise of `new`'s caller.
        let message = self.stream.add(operation, |batch| unsafe { add_send(batch, on, buffer, to, blocks) })?;
        Ok((self.keep(message, operation, on), operation))
    }

    fn add_receive(
        &self,
        buffer: &mut RawBuffer<'_>,
        from: (Sender, Tag),
        on: &Communicator,
        blocks: bool,
    ) -> Result<(Arc<StreamMessage>, Operation), Error> {
        let buffer = buffer.writable()?;
        let operation = Operation::receive(&buffer, from.0, from.1);
        // SAFETY: as in `add_send`.
        let message = self.stream.add(operation, |batch| unsafe { add_receive(batch, on, buffer, from, blocks) })?;
        Ok((self.keep(message, operation, on), operation))
    }

    fn keep(&self, message: StreamMessage, operation: Operation, on: &Communicator) -> Arc<StreamMessage> {
        let message = Arc::new(message);
        self.kept.keep(Kept { message: message.clone(), operation, _communicator: Some(on.clone()) });
        message
    }
}

impl RawPrepared {
    /// Waits until the peer has prepared its side; see [`PreparedMessage::agree`](crate::PreparedMessage::agree).
    ///
    /// # Errors
    /// The peer is gone.
    pub fn agree(&self) -> Result<PreparedPath, Error> {
        self.prepared.agree().map_err(|error| self.operation.failed(error))
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            log::debug!("the end of a stream's description: {error}");
        }
        // Messages of a stream that cannot be marked any more.
        drop(self.kept.wait());
    }
}
