//! Prepared operations of a stream, as callers use them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::batch::StreamBatch;
use super::handle::Stream;
use super::prepared::pair::{Agreed, Pair, PreparedPath};
use super::prepared::plan::Side;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::PROC_NULL;
use crate::tag::Communicator;

/// A send or receive that is posted on its stream many times. Made by [`Stream::prepare_send`] and
/// [`Stream::prepare_recv`].
///
/// The n-th post of a side belongs to the n-th post of the other one. A post adds to the stream: the later work of the
/// sender's stream may change the buffer, that of the receiver's finds the data in it.
///
/// Its end waits until the stream has passed all posts. The memory is lent until then, and while a graph that contains a
/// post is launched or may be launched.
pub struct Prepared {
    stream: Stream,
    pair: Arc<Pair>,
}

impl Stream {
    /// Prepares a send to rank `dest`, which prepares a receive with the same tag on the same communicator. Returns at
    /// once. Prepared operations match in the order in which they are prepared, and match no other messages.
    ///
    /// # Safety
    /// The buffer stays valid until the value is dropped, and unwritten while a post of it is not done other than by
    /// earlier and later work of the stream. The communicator stays in the engine. The stream exists until the value is
    /// dropped. The value is dropped, or [`Prepared::end`] is called.
    ///
    /// # Errors
    /// A bad rank or tag, or the peer is gone.
    pub unsafe fn prepare_send(
        &self,
        to: &Arc<Communicator>,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<Prepared, Error> {
        self.prepare(to, Side::Send, (dest, tag), buffer)
    }

    /// Prepares a receive from rank `source`, as [`prepare_send`](Self::prepare_send). There are no wildcards.
    ///
    /// # Safety
    /// As there; the buffer stays untouched instead.
    ///
    /// # Errors
    /// As there, or 8192 receives are prepared already.
    pub unsafe fn prepare_recv(
        &self,
        on: &Arc<Communicator>,
        source: i32,
        tag: i32,
        buffer: Buffer<'_>,
    ) -> Result<Prepared, Error> {
        self.prepare(on, Side::Receive, (source, tag), buffer)
    }

    fn prepare(
        &self,
        communicator: &Arc<Communicator>,
        side: Side,
        (peer, tag): (i32, i32),
        buffer: Buffer<'_>,
    ) -> Result<Prepared, Error> {
        self.shared.check()?;
        if tag < 0 {
            return Err(Error::BadTag { tag });
        }
        buffer.packed_len()?;
        let process = if peer == PROC_NULL { 0 } else { communicator.destination(peer, tag)? };
        let pair = Arc::new(Pair::new(&self.state, communicator, side, (peer, process, tag), buffer.to_owned()));
        let shared = &self.shared;
        if peer == PROC_NULL {
            pair.agree_on_nobody();
        } else {
            shared.exchange.begin(&shared.engine, &shared.streams(), &pair)?;
        }
        Ok(Prepared { stream: Stream::new(shared.clone(), self.state.clone()), pair })
    }
}

impl Prepared {
    /// Waits until the peer has prepared its side, too, and returns what moves the data. The first post does the same if
    /// nobody has.
    ///
    /// This call takes the peers' offers of all operations of the engine, and maps their memory. A driver maps memory only
    /// after it has waited for the context's streams. So if a described stream may wait for a message now, or has other work
    /// for two more seconds, the thread moves the data ([`PreparedPath::Thread`]): agree before streams have work.
    ///
    /// # Errors
    /// The peer is gone, or sent malformed bytes.
    pub fn agree(&self) -> Result<PreparedPath, Error> {
        let shared = &self.stream.shared;
        if self.pair.agreed().is_none() {
            shared.check()?;
            shared.engine.wait_until(|| {
                shared.exchange.advance(&shared.engine, &shared.streams());
                self.pair.agreed().is_some()
            });
            // From now on the thread watches the peer.
            shared.called();
        }
        match self.pair.agreed() {
            Some(Ok(Agreed::Thread { obstacle, .. })) => Ok(PreparedPath::Thread { reason: obstacle.reason() }),
            Some(Ok(Agreed::Direct(_) | Agreed::Nobody)) => Ok(PreparedPath::Streams),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::Forked),
        }
    }

    /// Posts the operation on its stream. Returns at once, after the first post. If the stream captures a graph, the post
    /// becomes part of it: each launch of the graph posts once. Launches must not overlap, and other posts of the operation
    /// must be ordered with them.
    ///
    /// # Errors
    /// An earlier message on the stream failed and no one was told, the peer is gone or has dropped its side, the driver
    /// refused, or a graph cannot contain the operation because a thread moves it.
    pub fn post(&self) -> Result<(), Error> {
        self.agree()?;
        let mut batch = self.stream.batch()?;
        batch.prepared(self)?;
        batch.post()
    }
}

impl StreamBatch<'_> {
    /// Posts a prepared operation of this stream, on which both sides have agreed ([`Prepared::agree`]).
    ///
    /// # Errors
    /// They have not, or it was prepared on another stream, or the peer is gone or has dropped its side.
    pub fn prepared(&mut self, prepared: &Prepared) -> Result<(), Error> {
        self.post_pair(&prepared.pair)
    }
}

impl Prepared {
    /// Ends the operation: waits until the stream has passed all posts. Later posts are refused. Dropping does the same.
    pub fn end(&self) {
        let Prepared { stream, pair } = self;
        let shared = &stream.shared;
        if shared.engine.is_forked() || !pair.begin_end() {
            return;
        }
        if pair.is_used() {
            match stream.mark() {
                Ok(mark) => {
                    if let Err(error) = stream.wait_for_mark(mark) {
                        log::debug!("the end of a prepared operation: {error}");
                    }
                }
                // Nobody else lets the stream go on.
                Err(Error::StreamsEnded) if shared.ended.load(Ordering::Acquire) => pair.wait_alone(),
                // The stream's context does no more work, or it captures a graph.
                Err(error) => log::debug!("the end of a prepared operation: {error}"),
            }
            if stream.state.check().is_err() && !stream.state.has_passed_posts() {
                pair.note_unmade();
            }
        }
        shared.exchange.end(&shared.engine, &shared.streams(), pair);
        shared.called();
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.end();
    }
}
