//! Buffered sends and the buffer attached for them.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::buffer::Buffer;
use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::error::Error;
use crate::request::{Outcome, Request};
use crate::send::SendMode;

/// Memory into which buffered sends copy what cannot leave at once. The memory is the host's.
pub struct AttachedBuffer {
    memory: *mut u8,
    size: usize,
    /// Messages in it: where each begins, and where it ends.
    used: Mutex<BTreeMap<usize, usize>>,
}

// SAFETY: the memory is reached only through ranges that `used` gives to one message each.
unsafe impl Send for AttachedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AttachedBuffer {}

impl AttachedBuffer {
    /// What each message in the buffer needs beside its packed bytes (`MPI_BSEND_OVERHEAD`): room for alignment.
    pub const OVERHEAD: usize = 64;

    /// # Safety
    /// `size` bytes of host memory at `memory` stay valid, and nobody else's, until the value is dropped. Messages in
    /// it keep a reference: who wants the memory back waits for [`is_empty`](Self::is_empty) (`MPI_Buffer_detach`).
    pub unsafe fn new(memory: *mut u8, size: usize) -> Self {
        AttachedBuffer { memory, size, used: Mutex::default() }
    }

    /// Whether every message in it has left.
    pub fn is_empty(&self) -> bool {
        self.used.lock().is_empty()
    }

    /// The memory's first byte and its size.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.memory, self.size)
    }

    /// Finds room for a message of `len` bytes: the first gap that is large enough.
    fn take(&self, len: u64) -> Result<usize, Error> {
        let needed = len.saturating_add(Self::OVERHEAD as u64);
        let mut used = self.used.lock();
        let mut at = 0;
        for (&from, &to) in &*used {
            if needed <= (from - at) as u64 {
                break;
            }
            at = to;
        }
        // The gap found, or what lies behind the last message.
        let end = used.range(at..).next().map_or(self.size, |(&from, _)| from);
        if needed > (end - at) as u64 {
            return Err(Error::NoBufferSpace { size: self.size, needed });
        }
        used.insert(at, at + needed as usize);
        Ok(at)
    }

    fn give_back(&self, at: usize) {
        self.used.lock().remove(&at);
    }
}

/// A message that leaves from the attached buffer.
#[repr(C)]
struct Parcel {
    /// First, so that its address is the parcel's.
    request: Request,
    buffer: Arc<AttachedBuffer>,
    at: usize,
}

/// The hook of a parcel's request: frees both.
///
/// # Safety
/// `user` is a leaked box of a [`Parcel`], which nobody else uses.
unsafe fn parcel_left(_request: *const Request, user: *mut c_void) {
    // SAFETY: the caller's promise.
    let parcel = unsafe { Box::from_raw(user.cast::<Parcel>()) };
    if let Some(error) = parcel.request.error() {
        log::warn!("a buffered message was lost: {error}");
    }
    parcel.buffer.give_back(parcel.at);
}

impl Engine {
    /// Copies a message into the attached buffer and sends it from there.
    ///
    /// # Safety
    /// The user's buffer is valid for reads during the call.
    pub(crate) unsafe fn send_buffered(
        &self,
        to: &Communicator,
        dest: i32,
        tag: i32,
        buffer: Buffer<'_>,
        attached: &Arc<AttachedBuffer>,
    ) -> Result<(), Error> {
        let len = buffer.packed_len()?;
        let at = attached.take(len)?;
        // SAFETY: `take` gave this range of the memory, with room to spare for alignment, to this message.
        let copy = unsafe { attached.memory.add(at) };
        let location = buffer.classify(&self.devices);
        // SAFETY: the caller's promise; the convertor ends with this call.
        let mut convertor = unsafe { buffer.convertor_to_send(location, &self.devices) };
        // SAFETY: the range is `len` bytes long, and no part of the user's message.
        if let Err(error) = unsafe { convertor.pack(copy, len as usize) } {
            attached.give_back(at);
            return Err(Error::of_copy(error, &convertor));
        }
        let parcel = Box::into_raw(Box::new(Parcel { request: Request::new(), buffer: attached.clone(), at }));
        let request: *const Request = parcel.cast();
        // SAFETY: the request is new, and the hook gets the box that it expects.
        unsafe { (*parcel).request.set_hook(Some((parcel_left, parcel.cast()))) };
        let copied = Buffer::bytes(copy, len);
        // SAFETY: the range is the message's until the hook gives it back, which frees the request as well.
        match unsafe { self.isend(to, dest, tag, copied, &SendMode::Standard, request) } {
            Ok(Outcome::Started) => Ok(()),
            ended => {
                // SAFETY: the request is not active, so the box is ours again.
                unsafe { parcel_left(request, parcel.cast()) };
                ended.map(|_| ())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_found_given_back_and_found_again() {
        let mut memory = [0u8; 1000];
        // SAFETY: the memory outlives the buffer.
        let buffer = unsafe { AttachedBuffer::new(memory.as_mut_ptr(), memory.len()) };
        let need = |payload: usize| payload + AttachedBuffer::OVERHEAD;
        let first = buffer.take(200).unwrap();
        let second = buffer.take(300).unwrap();
        let third = buffer.take(200).unwrap();
        assert_eq!((first, second, third), (0, need(200), need(200) + need(300)));
        assert!(matches!(buffer.take(300), Err(Error::NoBufferSpace { size: 1000, .. })));
        buffer.give_back(second);
        assert_eq!(buffer.take(301).ok(), None, "the gap is a byte too small");
        assert_eq!(buffer.take(300).unwrap(), second);
        for at in [first, second, third] {
            buffer.give_back(at);
        }
        assert!(buffer.is_empty());
        assert!(buffer.take(u64::MAX).is_err());
    }
}
