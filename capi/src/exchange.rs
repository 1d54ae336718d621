//! Collective operations that move data from all processes to all, blocking and nonblocking.

use std::ffi::{c_int, c_void};

use cableway::{RawParts, RawPartsMut};

use crate::code::Failure;
use crate::collective::{Finish, perform, start};
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::Handle;
use crate::memory::{Memory, Parted, is_in_place};
use crate::outcome::guard;
use crate::request::Request;

/// Gathers parts of one length at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_allgather(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::even(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { allgather(communicator, send, receive, perform) })
}

/// Starts to gather parts of one length at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iallgather(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::even(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || allgather(communicator, send, receive, start)) }
}

/// Gathers parts of any lengths at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_allgatherv(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_counts: *const usize,
    displacements: *const usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::uneven(receive_buffer, receive_counts, displacements, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { allgather(communicator, send, receive, perform) })
}

/// Starts to gather parts of any lengths at all.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iallgatherv(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_counts: *const usize,
    displacements: *const usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::uneven(receive_buffer, receive_counts, displacements, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || allgather(communicator, send, receive, start)) }
}

/// Exchanges parts of one length.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_alltoall(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
) -> c_int {
    let send = Parted::even(send_buffer, send_count, send_datatype);
    let receive = Parted::even(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { alltoall(communicator, send, receive, perform) })
}

/// Starts to exchange parts of one length.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ialltoall(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Parted::even(send_buffer, send_count, send_datatype);
    let receive = Parted::even(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || alltoall(communicator, send, receive, start)) }
}

/// Exchanges parts of any lengths.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_alltoallv(
    send_buffer: *const c_void,
    send_counts: *const usize,
    send_displacements: *const usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_counts: *const usize,
    receive_displacements: *const usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
) -> c_int {
    let send = Parted::uneven(send_buffer, send_counts, send_displacements, send_datatype);
    let receive = Parted::uneven(receive_buffer, receive_counts, receive_displacements, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { alltoall(communicator, send, receive, perform) })
}

/// Starts to exchange parts of any lengths.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ialltoallv(
    send_buffer: *const c_void,
    send_counts: *const usize,
    send_displacements: *const usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_counts: *const usize,
    receive_displacements: *const usize,
    receive_datatype: *const Handle<Datatype>,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Parted::uneven(send_buffer, send_counts, send_displacements, send_datatype);
    let receive = Parted::uneven(receive_buffer, receive_counts, receive_displacements, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || alltoall(communicator, send, receive, start)) }
}

/// Prepares an allgather, and performs or starts it.
///
/// # Safety
/// The C program's promises: it keeps the memory until the operation has ended.
unsafe fn allgather<T>(on: Handled, send: Memory, receive: Parted, finish: impl Finish<T>) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let on = named(on)?;
        let (mut buffer, parts) = receive.open(on.size())?;
        let receive = RawPartsMut { buffer: &mut buffer, parts };
        let send = if is_in_place(send.address) { None } else { Some(send.buffer()?) };
        Ok(finish(on.allgather_raw(send.as_ref(), receive)?)?)
    }
}

/// Prepares an exchange of parts, and performs or starts it.
///
/// # Safety
/// As [`allgather`].
unsafe fn alltoall<T>(on: Handled, send: Parted, receive: Parted, finish: impl Finish<T>) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let on = named(on)?;
        let (mut buffer, parts) = receive.open(on.size())?;
        let receive = RawPartsMut { buffer: &mut buffer, parts };
        let send = if send.is_in_place() { None } else { Some(send.open(on.size())?) };
        let send = send.as_ref().map(|(buffer, parts)| RawParts { buffer, parts: *parts });
        Ok(finish(on.alltoall_raw(send, receive)?)?)
    }
}
