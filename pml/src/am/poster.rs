//! Posts active messages.

use std::ffi::c_void;
use std::sync::Arc;

use smallvec::SmallVec;

use super::state::{State, Then};
use super::wire::{Data, HEADER_LIMIT, INLINE_LIMIT, Preamble, TAG};
use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::Outcome;
use crate::tag::{Communicator, Engine, FastPath, Request, SendMode};
use crate::wire::MATCH_LEN;

/// Posts active messages of one engine. No call waits, so that handlers may post. May be used from any thread, and
/// copied.
///
/// Messages from one thread to one process reach their handlers in the order of the posts. A post that the network
/// cannot take yet is queued in this process, without a limit.
#[derive(Clone)]
pub struct Poster {
    pub(super) engine: Arc<Engine>,
    pub(super) state: Arc<State>,
}

/// The room for all that precedes the data of a message with a short header.
const BEGIN: usize = 128;

/// An active message that waits in this process.
#[repr(C)]
struct Parcel {
    /// The first field, so that both have the same address.
    request: Request,
    bytes: Box<[u8]>,
    state: Arc<State>,
}

/// The data of a post that completes by a function.
#[repr(C)]
struct Outgoing {
    /// The first field, so that both have the same address.
    request: Request,
    then: Then<()>,
    state: Arc<State>,
}

impl Poster {
    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the communicator that carries the messages. Other messages on it need tags below 0.
    pub(crate) fn communicator(&self) -> &Arc<Communicator> {
        &self.state.communicator
    }

    /// Returns this process's rank among those that may post to each other.
    pub fn rank(&self) -> u32 {
        self.state.communicator.rank()
    }

    /// Returns how many processes may post to each other.
    pub fn size(&self) -> u32 {
        self.state.communicator.group().len() as u32
    }

    /// Returns the number of posts that wait in this process: messages that have not left, and data that is under way.
    pub fn pending(&self) -> usize {
        self.state.posts()
    }

    /// Posts an active message of `header` and `data` to process `to`. Both are copied if the answer is
    /// [`Outcome::Complete`], which it always is for host data of at most [`INLINE_LIMIT`] bytes. Otherwise the request
    /// completes when the buffer can be reused.
    ///
    /// # Safety
    /// As [`Engine::isend`].
    ///
    /// # Errors
    /// The header is longer than [`HEADER_LIMIT`], the process does not exist or is gone, or the buffer's length does not
    /// fit in 64 bits. Nothing was posted, and the request is not active.
    pub unsafe fn post(
        &self,
        to: u32,
        id: u32,
        header: &[u8],
        data: Buffer<'_>,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        // SAFETY: the caller's promise.
        if unsafe { self.post_inline(to, id, header, data)? } {
            return Ok(Outcome::Complete);
        }
        // SAFETY: the caller's promise.
        unsafe { self.post_apart(to, id, header, data, request) }
    }

    /// Posts data that [`post_inline`](Self::post_inline) has not posted, which has checked the other arguments. The data
    /// stays where it is until the request completes.
    ///
    /// # Safety
    /// As [`Engine::isend`].
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub unsafe fn post_apart(
        &self,
        to: u32,
        id: u32,
        header: &[u8],
        data: Buffer<'_>,
        request: *const Request,
    ) -> Result<Outcome, Error> {
        let tag = self.announce(to, id, header, data)?;
        // SAFETY: the caller's promise.
        unsafe { self.engine.isend(&self.state.communicator, to as i32, tag, data, &SendMode::Standard, request) }
    }

    /// Posts as [`post`](Self::post) does, and calls `then` once the buffer can be reused. `then` runs like a handler, in
    /// a later call of any thread that makes progress. After an error it is dropped.
    ///
    /// # Safety
    /// The buffer stays valid, and unwritten, until `then` is called or dropped. So `then` may own it.
    ///
    /// # Errors
    /// As [`post`](Self::post). Later failures are passed to `then`.
    pub unsafe fn post_then(
        &self,
        to: u32,
        id: u32,
        header: &[u8],
        data: Buffer<'_>,
        then: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.state.start(&self.engine);
        self.state.begin_post();
        let (then, state): (Then<()>, _) = (Box::new(then), self.state.clone());
        let outgoing = Box::into_raw(Box::new(Outgoing { request: Request::new(), then, state }));
        // SAFETY: the request is new, and the hook gets the box that it expects.
        unsafe { (*outgoing).request.set_hook(Some((data_left, outgoing.cast()))) };
        // SAFETY: the caller's promise; the box lives until the hook frees it.
        match unsafe { self.post(to, id, header, data, outgoing.cast()) } {
            Ok(Outcome::Started) => Ok(()),
            ended => {
                // SAFETY: the request is not active, so this function owns the box again.
                let outgoing = unsafe { Box::from_raw(outgoing) };
                self.state.end_post();
                let _: Outcome = ended?;
                self.state.posted(outgoing.then, Ok(()));
                Ok(())
            }
        }
    }

    /// Posts a copy of the data if it may come with its header: if it lies in host memory and is at most
    /// [`INLINE_LIMIT`] bytes long. Otherwise does nothing, and returns false.
    ///
    /// # Safety
    /// The buffer is valid for reads.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub unsafe fn post_inline(&self, to: u32, id: u32, header: &[u8], data: Buffer<'_>) -> Result<bool, Error> {
        self.check(to, id, header)?;
        let len = data.packed_len()?;
        if len > INLINE_LIMIT as u64 {
            return Ok(false);
        }
        let location = data.classify(self.engine.devices());
        if location.on_device() {
            return Ok(false);
        }
        let mut packed = SmallVec::<[u8; 256]>::new();
        let inline = match data.contiguous() {
            _ if len == 0 => &[],
            // SAFETY: the caller promises that this host memory is valid for reads.
            Some((address, len)) => unsafe { std::slice::from_raw_parts(address.cast_const(), len as usize) },
            None => {
                packed.resize(len as usize, 0);
                // SAFETY: the caller's promise; the convertor ends here.
                let mut convertor = unsafe { data.convertor_to_send(location, self.engine.devices()) };
                convertor.pack_slice(&mut packed).map_err(|error| Error::of_copy(error, &convertor))?;
                &packed[..]
            }
        };
        let mut begin = [0; BEGIN];
        if let Some(len) = Preamble::begin_inline(id, header, &mut begin[MATCH_LEN..]) {
            let (communicator, begin) = (&self.state.communicator, &mut begin[..MATCH_LEN + len]);
            if self.engine.send_parts_now(communicator, to as i32, TAG, begin, inline) {
                return Ok(true);
            }
        }
        self.send(to, &Preamble { id, header, data: Data::Inline(inline) })?;
        Ok(true)
    }

    /// Announces data. Returns the tag of the message that must follow.
    fn announce(&self, to: u32, id: u32, header: &[u8], data: Buffer<'_>) -> Result<i32, Error> {
        let (len, tag) = (data.packed_len()?, self.state.next_tag());
        self.send(to, &Preamble { id, header, data: Data::Follows { len, tag } })?;
        Ok(tag)
    }

    fn check(&self, to: u32, id: u32, header: &[u8]) -> Result<(), Error> {
        if header.len() > HEADER_LIMIT {
            return Err(Error::HeaderTooLong { id, len: header.len(), limit: HEADER_LIMIT });
        }
        let size = self.state.communicator.group().len();
        // High numbers would be taken for wildcards.
        if to as usize >= size {
            return Err(Error::NoSuchRank { rank: i32::try_from(to).unwrap_or(i32::MAX), size });
        }
        Ok(())
    }

    /// Sends a message whose arguments were checked, or queues it.
    fn send(&self, to: u32, message: &Preamble<'_>) -> Result<(), Error> {
        let mut bytes = SmallVec::<[u8; 256]>::new();
        message.encode(&mut bytes);
        let (to, buffer) = (to as i32, Buffer::bytes(bytes.as_ptr(), bytes.len() as u64));
        let communicator = &self.state.communicator;
        // SAFETY: the bytes live until this call returns.
        if let FastPath::Sent = unsafe { self.engine.send_now(communicator, to, TAG, buffer)? } {
            return Ok(());
        }
        let (bytes, state) = (bytes.into_boxed_slice(), self.state.clone());
        let buffer = Buffer::bytes(bytes.as_ptr(), bytes.len() as u64);
        let parcel = Box::into_raw(Box::new(Parcel { request: Request::new(), bytes, state }));
        let request: *const Request = parcel.cast();
        self.state.begin_post();
        // SAFETY: the request is new, and the hook gets the box that it expects.
        unsafe { (*parcel).request.set_hook(Some((parcel_left, parcel.cast()))) };
        // SAFETY: the box, and the bytes with it, live until the hook frees them.
        match unsafe { self.engine.isend(communicator, to, TAG, buffer, &SendMode::Standard, request) } {
            Ok(Outcome::Started) => Ok(()),
            ended => {
                // SAFETY: the request is not active, so this function owns the box again.
                unsafe { parcel_left(request, parcel.cast()) };
                ended.map(drop)
            }
        }
    }
}

/// Frees a parcel. It is the hook of the parcel's request.
///
/// # Safety
/// `user` is a leaked box of a [`Parcel`], and nothing else uses it.
unsafe fn parcel_left(_request: *const Request, user: *mut c_void) {
    // SAFETY: the caller's promise.
    let Parcel { request, bytes, state } = *unsafe { Box::from_raw(user.cast::<Parcel>()) };
    if let Some(error) = request.error() {
        log::debug!("an active message of {} bytes was lost: {error}", bytes.len());
    }
    state.end_post();
}

/// Passes the end of a post's data on. It is the hook of its request.
///
/// # Safety
/// `user` is a leaked box of an [`Outgoing`], and nothing else uses it.
unsafe fn data_left(_request: *const Request, user: *mut c_void) {
    // SAFETY: the caller's promise.
    let Outgoing { request, then, state } = *unsafe { Box::from_raw(user.cast::<Outgoing>()) };
    state.posted(then, request.result().map(drop));
    state.end_post();
}
