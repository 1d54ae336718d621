//! Buffered sends.

use std::ffi::c_void;
use std::sync::Arc;

use super::attached::AttachedBuffer;
use super::communicator::Communicator;
use super::engine::Engine;
use super::request::Request;
use super::start_send;
use crate::buffer::Buffer;
use crate::error::Error;
use crate::status::Outcome;

/// A message that leaves from the attached buffer.
#[repr(C)]
struct Parcel {
    /// The first field, so that both have the same address.
    request: Request,
    buffer: Arc<AttachedBuffer>,
    at: usize,
}

/// Frees a parcel and its space. It is the hook of the parcel's request.
///
/// # Safety
/// `user` is a leaked box of a [`Parcel`], and nothing else uses it.
unsafe fn parcel_left(_request: *const Request, user: *mut c_void) {
    // SAFETY: the caller's promise.
    let parcel = unsafe { Box::from_raw(user.cast::<Parcel>()) };
    if let Some(error) = parcel.request.error() {
        log::warn!("a buffered message was lost: {error}");
    }
    parcel.buffer.give_back(parcel.at);
}

/// Copies a message into the attached buffer and sends it from there.
///
/// # Safety
/// The user's buffer is valid for reads during the call.
pub(super) unsafe fn send(
    engine: &Engine,
    to: &Communicator,
    dest: i32,
    tag: i32,
    buffer: Buffer<'_>,
    attached: &Arc<AttachedBuffer>,
) -> Result<(), Error> {
    let len = buffer.packed_len()?;
    let at = attached.take(len)?;
    // SAFETY: `take` assigned this range of the memory, with space for alignment, to this message.
    let copy = unsafe { attached.memory().0.add(at) };
    let location = buffer.classify(engine.devices());
    // SAFETY: the caller's promise; the convertor ends with this call.
    let mut convertor = unsafe { buffer.convertor_to_send(location, engine.devices()) };
    // SAFETY: the range is `len` bytes long, and not part of the user's message.
    if let Err(error) = unsafe { convertor.pack(copy, len as usize) } {
        attached.give_back(at);
        return Err(Error::of_copy(error, &convertor));
    }
    let parcel = Box::into_raw(Box::new(Parcel { request: Request::new(), buffer: attached.clone(), at }));
    let request: *const Request = parcel.cast();
    // SAFETY: the request is new, and the hook gets the box that it expects.
    unsafe { (*parcel).request.set_hook(Some((parcel_left, parcel.cast()))) };
    let copied = Buffer::bytes(copy, len);
    // SAFETY: the range belongs to the message until the hook returns it, which frees the request as well.
    match unsafe { start_send::send(engine, to, dest, tag, copied, request) } {
        Ok(Outcome::Started) => Ok(()),
        ended => {
            // SAFETY: the request is not active, so this function owns the box again.
            unsafe { parcel_left(request, parcel.cast()) };
            ended.map(|_| ())
        }
    }
}
