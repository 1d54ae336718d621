//! An active message in its handler.

use std::ffi::c_void;
use std::sync::Arc;

use super::deferred::Deferred;
use super::poster::Poster;
use super::state::{State, Then};
use super::wire::Data;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::Status;
use crate::tag::{Engine, Request};

/// An active message, in the call of its handler.
///
/// The handler reads inline data ([`data`](Self::data)), or says where the data lands ([`receive`](Self::receive)).
/// Data that it does neither with is dropped.
pub struct Arrival<'a> {
    pub(super) poster: &'a Poster,
    pub(super) source: u32,
    pub(super) id: u32,
    pub(super) header: &'a [u8],
    /// `None` once it was received.
    pub(super) data: Option<Data<'a>>,
    /// What is called after the handler.
    pub(super) after: &'a mut Deferred,
}

/// Data on its way to the buffer that a handler chose.
#[repr(C)]
struct Landing {
    /// The first field, so that both have the same address.
    request: Request,
    source: u32,
    announced: u64,
    then: Then<u64>,
    state: Arc<State>,
}

impl<'a> Arrival<'a> {
    /// Returns the rank of the process that posted the message.
    pub fn source(&self) -> u32 {
        self.source
    }

    /// Returns the message's id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the header.
    pub fn header(&self) -> &'a [u8] {
        self.header
    }

    /// Returns the length of the data in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an active message without data is not empty")]
    pub fn len(&self) -> u64 {
        match self.data {
            Some(Data::Inline(data)) => data.len() as u64,
            Some(Data::Follows { len, .. }) => len,
            None => 0,
        }
    }

    /// Returns data that came with the header: data from host memory of at most [`INLINE_LIMIT`](super::INLINE_LIMIT)
    /// bytes. Returns `None` for other data, which must be received.
    pub fn data(&self) -> Option<&'a [u8]> {
        match self.data {
            Some(Data::Inline(data)) => Some(data),
            _ => None,
        }
    }

    /// Returns what posts answers and other messages.
    pub fn poster(&self) -> &'a Poster {
        self.poster
    }

    /// Receives the data into `buffer`, which may lie on a device. Does not wait: `then` is called with the length of the
    /// data once it is there, after this handler has returned. It runs like a handler.
    ///
    /// `then` gets an error if the data is longer than the buffer, which holds its beginning, if the sender died, or if
    /// active messages are closed first.
    ///
    /// # Safety
    /// The buffer stays valid, and exclusive to this operation, until `then` is called or dropped. So `then` may own it.
    pub unsafe fn receive(mut self, buffer: Buffer<'_>, then: impl FnOnce(Result<u64, Error>) + Send + 'static) {
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { self.receive_inline(buffer) } {
            self.then(move || then(result));
        } else if let Some(Data::Follows { len, tag }) = self.data.take() {
            // SAFETY: the caller's promise.
            unsafe { land(self.poster, self.source, len, tag, buffer, Box::new(then)) };
        }
    }

    /// Copies inline data into `buffer`, and returns the length of the data. Returns `None` for other data, which must be
    /// [received](Self::receive).
    ///
    /// # Errors
    /// The data is longer than the buffer, which then holds its beginning, or the buffer's length does not fit in 64
    /// bits.
    ///
    /// # Safety
    /// The buffer is valid for writes, and exclusive to this call.
    #[inline]
    pub unsafe fn receive_inline(&mut self, buffer: Buffer<'_>) -> Option<Result<u64, Error>> {
        match (buffer.packed_len(), self.data) {
            (Err(error), _) => Some(Err(error)),
            // SAFETY: the caller's promise.
            (Ok(capacity), Some(Data::Inline(data))) => Some(unsafe { self.copy_inline(data, buffer, capacity) }),
            (Ok(_), _) => None,
        }
    }

    /// Has `then` called after this handler has returned. It runs like a handler. Drops data that was not received.
    #[inline]
    pub fn then(self, then: impl FnOnce() + Send + 'static) {
        self.after.set(then);
    }

    /// Copies inline data. Waits for a device's copy, which is short.
    ///
    /// # Safety
    /// The buffer is valid for writes, and exclusive to this call.
    unsafe fn copy_inline(&self, data: &[u8], buffer: Buffer<'_>, capacity: u64) -> Result<u64, Error> {
        let devices = self.poster.engine.devices();
        let take = (data.len() as u64).min(capacity) as usize;
        let location = buffer.classify(devices);
        if let Some((address, len)) =
            buffer.contiguous().filter(|_| !location.on_device() && !data.is_empty() && data.len() == take)
        {
            debug_assert_eq!(len, capacity);
            // SAFETY: the caller promises that this host memory is valid for writes, and it has as many bytes. The data is
            // the engine's.
            unsafe { address.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
            return Ok(data.len() as u64);
        }
        // SAFETY: the caller's promise.
        let mut convertor = unsafe { buffer.convertor_to_receive(location, devices) };
        convertor.unpack_slice(&data[..take]).map_err(|error| Error::of_copy(error, &convertor))?;
        let status = Status { source: self.source as i32, tag: 0, len: data.len() as u64, cancelled: false };
        Error::truncated(&status, capacity).map_or(Ok(data.len() as u64), Err)
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        if let Some(Data::Follows { tag, .. }) = self.data {
            discard(&self.poster.engine, &self.poster.state, self.source, tag);
        }
    }
}

/// Starts to receive data that comes in a message of its own.
///
/// # Safety
/// As [`Arrival::receive`].
unsafe fn land(poster: &Poster, source: u32, announced: u64, tag: i32, buffer: Buffer<'_>, then: Then<u64>) {
    let (engine, state) = (&poster.engine, poster.state.clone());
    let landing = Landing { request: Request::new(), source, announced, then, state };
    let landing = Box::into_raw(Box::new(landing));
    // SAFETY: the request is new, and the hook gets the box that it expects.
    unsafe { (*landing).request.set_hook(Some((landed, landing.cast()))) };
    // SAFETY: the caller's promise; the box lives until the hook frees it.
    let started = unsafe { engine.irecv(&poster.state.communicator, source as i32, tag, buffer, landing.cast()) };
    if let Err(error) = started {
        // SAFETY: the request is not active, so this function owns the box again.
        let landing = unsafe { Box::from_raw(landing) };
        landing.state.landed(landing.then, Err(error));
    }
}

/// Passes the end of a landing on. It is the hook of its request.
///
/// # Safety
/// `user` is a leaked box of a [`Landing`], and nothing else uses it.
unsafe fn landed(_request: *const Request, user: *mut c_void) {
    // SAFETY: the caller's promise.
    let Landing { request, source, announced, then, state } = *unsafe { Box::from_raw(user.cast::<Landing>()) };
    let result = request.result().and_then(|Status { len, .. }| {
        if len == announced { Ok(len) } else { Err(Error::OtherLength { source_rank: source, announced, sent: len }) }
    });
    state.landed(then, result);
}

/// Receives data into no memory, so that its sender gets its buffer back.
pub(super) fn discard(engine: &Engine, state: &State, source: u32, tag: i32) {
    let request = Box::into_raw(Box::new(Request::new()));
    // SAFETY: the request is new, and the hook gets the box that it expects.
    unsafe { (*request).set_hook(Some((discarded, request.cast()))) };
    // SAFETY: the empty buffer is valid, and the box lives until the hook frees it.
    if let Err(error) = unsafe { engine.irecv(&state.communicator, source as i32, tag, Buffer::EMPTY, request) } {
        log::debug!("data of rank {source} is dropped with its sender: {error}");
        // SAFETY: the request is not active, so this function owns the box again.
        unsafe { discarded(request, request.cast()) };
    }
}

/// Frees the request of [`discard`]. It is its hook.
///
/// # Safety
/// `user` is a leaked box of a [`Request`], and nothing else uses it.
unsafe fn discarded(_request: *const Request, user: *mut c_void) {
    // The result does not matter: the receive is truncated, or the sender is gone.
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(user.cast::<Request>()) });
}
