//! Active messages: a process posts a message, and the target calls the handler that it registered for the message's id.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use cableway_base::Rank;
use cableway_pml::{ActiveCounts, Arrival, Error as EngineError};

use crate::buffer::{RecvBuffer, SendBuffer};
use crate::error::Operation;
use crate::{Error, World};

/// An active message, in the call of its handler.
///
/// The handler reads data that came with the header ([`data`](Self::data)), or says where the data lands
/// ([`receive`](Self::receive)). Data that it does neither with is dropped.
pub struct ActiveMessage<'a> {
    arrival: Arrival<'a>,
}

/// Posts active messages. It can be copied and sent to other threads, and does not keep the process in its job.
///
/// No call waits, so that handlers may post. A message that the network cannot take yet is queued in this process,
/// without a limit; [`pending`](Self::pending) tells how many are.
#[derive(Clone)]
pub struct Poster {
    inner: cableway_pml::Poster,
}

impl World {
    /// Registers the handler of active messages with this id, any number that the program chooses.
    ///
    /// Handlers run in whichever thread makes progress: one that waits, or calls [`progress`](Self::progress), or that of
    /// the parameter `progress_thread`. They run one at a time, and see the messages of each rank in the order of its
    /// posts. A handler may post, and must not wait for messages. If it panics, the panic is logged, and the message's
    /// data is dropped.
    ///
    /// Messages wait until their rank registers its first handler. From then on those without a handler are dropped, and
    /// an error is logged once for each id. So register all handlers right after [`init`](Self::init), or synchronise
    /// before other ranks post.
    ///
    /// A handler that owns the world, or a communicator, keeps this process in its job until it is removed. Use
    /// [`ActiveMessage::poster`] instead.
    ///
    /// ```
    /// # fn main() -> Result<(), cableway::Error> {
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// let world = cableway::World::init()?;
    /// let sum = Arc::new(AtomicU64::new(0));
    /// let added = sum.clone();
    /// world.am_handler(1, move |message| {
    ///     let bytes = message.data().and_then(|data| data.try_into().ok());
    ///     added.fetch_add(bytes.map_or(0, u64::from_le_bytes), Ordering::Relaxed);
    /// })?;
    /// world.post_am(world.rank(), 1, b"", 42_u64.to_le_bytes())?;
    /// world.progress_until(|| sum.load(Ordering::Relaxed) == 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The id has a handler.
    pub fn am_handler(
        &self,
        id: u32,
        handler: impl Fn(ActiveMessage<'_>) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        Ok(self.inner().active.register(id, move |arrival| handler(ActiveMessage { arrival }))?)
    }

    /// Removes a handler. Returns whether there was one.
    pub fn remove_am_handler(&self, id: u32) -> bool {
        self.inner().active.unregister(id)
    }

    /// Posts an active message to rank `to` of the job; see [`Poster::post`].
    ///
    /// # Errors
    /// The same as those of [`Poster::post`].
    pub fn post_am(
        &self,
        to: Rank,
        id: u32,
        header: &[u8],
        data: impl SendBuffer + Send + 'static,
    ) -> Result<(), Error> {
        self.poster().post(to, id, header, data)
    }

    /// Returns what posts active messages, for other threads and for completions.
    pub fn poster(&self) -> Poster {
        Poster { inner: self.inner().active.poster().clone() }
    }

    /// Waits until every active message that was posted before has left this process. It may not have been handled yet.
    /// Not for handlers.
    pub fn flush_am(&self) {
        self.inner().active.flush();
    }

    /// Returns how many active messages were handled so far, and how many failed.
    pub fn am_counts(&self) -> ActiveCounts {
        self.inner().active.counts()
    }

    /// Makes progress until `over` returns true: moves messages and calls handlers. It waits as a receive does, and may
    /// sleep. So `over` must depend on messages only, not on other threads. Not for handlers.
    pub fn progress_until(&self, over: impl FnMut() -> bool) {
        self.inner().engine.wait_until(over);
    }

    /// Moves messages and calls handlers, without waiting. Returns the number of events, 0 if nothing happened.
    pub fn progress(&self) -> usize {
        self.inner().engine.progress()
    }
}

impl Poster {
    /// Posts an active message of `header` and `data` to rank `to` of the job, whose handler for `id` is called.
    ///
    /// The header has at most [`AM_HEADER_LIMIT`](crate::AM_HEADER_LIMIT) bytes. Data in host memory of at most
    /// [`AM_INLINE_LIMIT`](crate::AM_INLINE_LIMIT) bytes is copied and comes with its header. Other data stays where it
    /// is until it has been received or dropped, and is dropped here then. Leaving the job waits for it, for up to the
    /// parameter `peer_timeout`.
    ///
    /// # Errors
    /// The header is too long, or the rank does not exist or is gone. Nothing was posted. If the rank dies later, queued
    /// messages to it are dropped; [`post_then`](Self::post_then) reports that for data.
    pub fn post(&self, to: Rank, id: u32, header: &[u8], data: impl SendBuffer + Send + 'static) -> Result<(), Error> {
        let buffer = data.readable()?;
        // SAFETY: the data is borrowed.
        let posted = unsafe { self.inner.post_inline(to, id, header, buffer) };
        if posted.map_err(|error| Operation::post(&buffer, to).failed(error))? {
            return Ok(());
        }
        self.post_then(to, id, header, data, |_, result| {
            if let Err(error) = result {
                log::debug!("{error}");
            }
        })
    }

    /// Posts as [`post`](Self::post) does, and passes the data to `then` once it can be reused, with the error if it could
    /// not be sent. `then` runs like a handler. It is called exactly once, unless this call fails.
    ///
    /// # Errors
    /// The same as those of [`post`](Self::post).
    pub fn post_then<B: SendBuffer + Send + 'static>(
        &self,
        to: Rank,
        id: u32,
        header: &[u8],
        data: B,
        then: impl FnOnce(B, Result<(), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let held = Held::new(data);
        // SAFETY: the completion owns the data, which does not move.
        let buffer = unsafe { held.0.as_ref() }.readable()?;
        let operation = Operation::post(&buffer, to);
        let then = move |result: Result<(), EngineError>| {
            then(held.into_inner(), result.map_err(|error| operation.failed(error)));
        };
        // SAFETY: as above.
        unsafe { self.inner.post_then(to, id, header, buffer, then) }.map_err(|error| operation.failed(error))
    }

    /// Returns the number of active messages of this process that have not left, or whose data is under way.
    pub fn pending(&self) -> usize {
        self.inner.pending()
    }
}

impl std::fmt::Debug for Poster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poster").field("pending", &self.pending()).finish()
    }
}

impl<'a> ActiveMessage<'a> {
    /// Returns the rank in the job that posted the message.
    pub fn source(&self) -> Rank {
        self.arrival.source()
    }

    /// Returns the message's id.
    pub fn id(&self) -> u32 {
        self.arrival.id()
    }

    /// Returns the header.
    pub fn header(&self) -> &'a [u8] {
        self.arrival.header()
    }

    /// Returns the length of the data in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an active message without data is not empty")]
    pub fn len(&self) -> u64 {
        self.arrival.len()
    }

    /// Returns data that came with the header: data from host memory of at most
    /// [`AM_INLINE_LIMIT`](crate::AM_INLINE_LIMIT) bytes. Returns `None` for other data, which must be received.
    pub fn data(&self) -> Option<&'a [u8]> {
        self.arrival.data()
    }

    /// Returns what posts messages. The handler may keep it.
    pub fn poster(&self) -> Poster {
        Poster { inner: self.arrival.poster().clone() }
    }

    /// Posts a message to the sender of this one; see [`Poster::post`].
    ///
    /// # Errors
    /// The same as those of [`Poster::post`].
    pub fn reply(&self, id: u32, header: &[u8], data: impl SendBuffer + Send + 'static) -> Result<(), Error> {
        self.poster().post(self.source(), id, header, data)
    }

    /// Receives the data into `buffer`, in host or device memory. Does not wait: `then` gets the buffer, and the length of
    /// the data once it is there, after the handler has returned. `then` runs like a handler, and may post by a
    /// [`poster`](Self::poster) that it owns.
    ///
    /// The result is an error if the data is longer than the buffer, which then holds its beginning; if the sender died;
    /// or if this process left the job first.
    pub fn receive<B: RecvBuffer + Send + 'static>(
        mut self,
        mut buffer: B,
        then: impl FnOnce(B, Result<u64, Error>) + Send + 'static,
    ) {
        let (source, bytes) = (self.source(), self.len());
        let landed = move |result: Result<u64, EngineError>| {
            result.map_err(|error| Operation::landing(bytes, source).failed(error))
        };
        if self.data().is_some() {
            let place = match buffer.writable() {
                Ok(place) => place,
                Err(error) => return then(buffer, Err(error)),
            };
            // SAFETY: the buffer is borrowed exclusively.
            if let Some(result) = unsafe { self.arrival.receive_inline(place) } {
                return self.arrival.then(move || then(buffer, landed(result)));
            }
        }
        let held = Held::new(buffer);
        // SAFETY: nothing else uses the buffer.
        let buffer = match unsafe { &mut *held.0.as_ptr() }.writable() {
            Ok(buffer) => buffer,
            Err(error) => return then(held.into_inner(), Err(error)),
        };
        // SAFETY: the completion owns the buffer, which does not move.
        unsafe {
            self.arrival.receive(buffer, move |result| then(held.into_inner(), landed(result)));
        }
    }
}

impl std::fmt::Debug for ActiveMessage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ActiveMessage {} of {} bytes from rank {}", self.id(), self.len(), self.source())
    }
}

/// A buffer at an address that does not change. Held by pointer instead of by box, because the engine has the address,
/// too.
struct Held<B>(NonNull<B>);

// SAFETY: it owns a value that may move to another thread.
unsafe impl<B: Send> Send for Held<B> {}

impl<B> Held<B> {
    fn new(buffer: B) -> Self {
        Held(NonNull::from(Box::leak(Box::new(buffer))))
    }

    fn into_inner(self) -> B {
        let this = ManuallyDrop::new(self);
        // SAFETY: `new` made it from a box, and this value does not drop it.
        *unsafe { Box::from_raw(this.0.as_ptr()) }
    }
}

impl<B> Drop for Held<B> {
    fn drop(&mut self) {
        // SAFETY: `new` made it from a box. The engine calls or drops the completion, which owns this value, once it no
        // longer uses the buffer.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
