//! Blocking messages between two processes.

use std::ffi::{c_int, c_void};

use crate::arguments::{Out, rank, sender, tag as any_tag};
use crate::code::Failure;
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::outcome::guard;
use crate::status::Status;

/// Stores the status of a message, also of one that was truncated.
///
/// # Safety
/// The address is null, or valid for writes.
unsafe fn received(result: Result<cableway::Status, cableway::Error>, status: *mut Status) -> Result<(), Failure> {
    let result = result.map_err(Failure::from);
    let known = match &result {
        Ok(received) => Some((*received).into()),
        Err(failure) => failure.truncated,
    };
    if let Some(known) = known {
        // SAFETY: the caller's promise.
        unsafe { known.store(status) };
    }
    result.map(drop)
}

/// Sends, and returns when the buffer can be reused.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_send(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    to: c_int,
    tag: c_int,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let buffer = Memory { address: buffer, count, datatype }.buffer()?;
        Ok(named(communicator)?.send(&buffer, rank(to)?, tag)?)
    })
}

/// Sends, and returns after a receive has matched the message.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ssend(
    buffer: *const c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    to: c_int,
    tag: c_int,
    communicator: Handled,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let buffer = Memory { address: buffer, count, datatype }.buffer()?;
        Ok(named(communicator)?.ssend(&buffer, rank(to)?, tag)?)
    })
}

/// Receives.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_recv(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    source: c_int,
    tag: c_int,
    communicator: Handled,
    status: *mut Status,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let mut buffer = Memory { address: buffer, count, datatype }.buffer()?;
        received(named(communicator)?.recv(&mut buffer, sender(source)?, any_tag(tag)), status)
    })
}

/// Sends one message and receives another at the same time.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_sendrecv(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    to: c_int,
    send_tag: c_int,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    source: c_int,
    receive_tag: c_int,
    communicator: Handled,
    status: *mut Status,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let sent = Memory { address: send_buffer, count: send_count, datatype: send_datatype }.buffer()?;
        let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
        let (to, from) = ((rank(to)?, send_tag), (sender(source)?, any_tag(receive_tag)));
        received(named(communicator)?.sendrecv(&sent, to, &mut receive.buffer()?, from), status)
    })
}

/// Waits for a message without receiving it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_probe(source: c_int, tag: c_int, communicator: Handled, status: *mut Status) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { received(named(communicator)?.probe(sender(source)?, any_tag(tag)), status) })
}

/// Looks for a message that has arrived, without receiving it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iprobe(
    source: c_int,
    tag: c_int,
    communicator: Handled,
    found: *mut c_int,
    status: *mut Status,
) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let place = Out::new(found, "the place for the answer")?;
        let found = named(communicator)?.iprobe(sender(source)?, any_tag(tag))?;
        place.set(c_int::from(found.is_some()));
        if let Some(found) = found {
            Status::from(found).store(status);
        }
        Ok(())
    })
}
