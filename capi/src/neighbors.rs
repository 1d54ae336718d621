//! Exchanges with neighbours, blocking and nonblocking.

use std::ffi::{c_int, c_void};

use cableway::{Neighbors, RawBuffer};

use crate::arguments;
use crate::code::Failure;
use crate::collective::{Finish, perform, start};
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::outcome::guard;
use crate::request::Request;

/// A message, `cableway_neighbor` in the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Neighbor {
    pub(crate) rank: c_int,
    pub(crate) number: u16,
    pub(crate) buffer: *mut c_void,
    pub(crate) count: usize,
    pub(crate) datatype: *const Handle<Datatype>,
}

/// The messages of a call in one direction.
#[derive(Clone, Copy)]
struct Messages {
    first: *const Neighbor,
    count: usize,
    name: &'static str,
}

/// Exchanges data with neighbours.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_neighbor_alltoall(
    sends: *const Neighbor,
    send_count: usize,
    receives: *const Neighbor,
    receive_count: usize,
    communicator: Handled,
) -> c_int {
    let (sends, receives) = described(sends, send_count, receives, receive_count);
    // SAFETY: the C program's promises.
    guard(|| unsafe { exchange(communicator, sends, receives, perform) })
}

/// Starts to exchange data with neighbours.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ineighbor_alltoall(
    sends: *const Neighbor,
    send_count: usize,
    receives: *const Neighbor,
    receive_count: usize,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let (sends, receives) = described(sends, send_count, receives, receive_count);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || exchange(communicator, sends, receives, start)) }
}

fn described(
    sends: *const Neighbor,
    send_count: usize,
    receives: *const Neighbor,
    receive_count: usize,
) -> (Messages, Messages) {
    let sends = Messages { first: sends, count: send_count, name: "the array of messages to send" };
    (sends, Messages { first: receives, count: receive_count, name: "the array of messages to receive" })
}

impl Messages {
    /// Returns the messages and their buffers.
    ///
    /// # Safety
    /// The array stays for as long as `'a`, and so does the memory of its messages ([`Memory::buffer`]).
    unsafe fn open<'a>(self) -> Result<(&'a [Neighbor], Vec<RawBuffer<'a>>), Failure> {
        // SAFETY: the caller's promise.
        let messages = unsafe { arguments::array(self.first, self.count, self.name)? };
        let buffers = messages.iter().map(|message| {
            let memory = Memory::new(message.buffer, message.count, message.datatype);
            // SAFETY: as above.
            unsafe { memory.buffer() }
        });
        let buffers = buffers.collect::<Result<_, _>>()?;
        Ok((messages, buffers))
    }
}

/// Prepares an exchange, and performs or starts it.
///
/// # Safety
/// The C program's promises: it keeps the memory until the operation has ended.
unsafe fn exchange<T>(on: Handled, sends: Messages, receives: Messages, finish: impl Finish<T>) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let (on, (sends, sent), (receives, mut received)) = unsafe { (named(on)?, sends.open()?, receives.open()?) };
    let mut neighbors = Neighbors::new();
    for (message, buffer) in sends.iter().zip(&sent) {
        neighbors.send(buffer, arguments::rank(message.rank)?, message.number)?;
    }
    for (message, buffer) in receives.iter().zip(&mut received) {
        neighbors.receive(buffer, arguments::rank(message.rank)?, message.number)?;
    }
    // SAFETY: the caller's promise.
    Ok(finish(unsafe { on.neighbor_alltoall_raw(neighbors)? })?)
}
