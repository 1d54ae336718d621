//! Collective operations that move data from or to one process, and the barrier, blocking and nonblocking.

use std::ffi::{c_int, c_void};

use cableway::{RawParts, RawPartsMut};

use crate::arguments::rank;
use crate::code::Failure;
use crate::collective::{Finish, perform, start};
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::Handle;
use crate::memory::{Memory, Parted, is_in_place};
use crate::outcome::guard;
use crate::request::Request;

/// Waits until all members have called it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_barrier(communicator: Handled) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(named(communicator)?.barrier()?) })
}

/// Starts a barrier.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ibarrier(communicator: Handled, request: *mut *mut Handle<Request>) -> c_int {
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || Ok(named(communicator)?.start_barrier_raw()?)) }
}

/// Sends the root's data to all.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_bcast(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
) -> c_int {
    let memory = Memory::new(buffer, count, datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { broadcast(communicator, root, memory, perform) })
}

/// Starts to send the root's data to all.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_ibcast(
    buffer: *mut c_void,
    count: usize,
    datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let memory = Memory::new(buffer, count, datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || broadcast(communicator, root, memory, start)) }
}

/// Gathers parts of one length at the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_gather(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::even(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { gather(communicator, root, send, receive, perform) })
}

/// Starts to gather parts of one length at the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_igather(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::even(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || gather(communicator, root, send, receive, start)) }
}

/// Gathers parts of any lengths at the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_gatherv(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_counts: *const usize,
    displacements: *const usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::uneven(receive_buffer, receive_counts, displacements, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { gather(communicator, root, send, receive, perform) })
}

/// Starts to gather parts of any lengths at the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_igatherv(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_counts: *const usize,
    displacements: *const usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Memory::new(send_buffer, send_count, send_datatype);
    let receive = Parted::uneven(receive_buffer, receive_counts, displacements, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || gather(communicator, root, send, receive, start)) }
}

/// Scatters parts of one length from the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_scatter(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
) -> c_int {
    let send = Parted::even(send_buffer, send_count, send_datatype);
    let receive = Memory::new(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { scatter(communicator, root, send, receive, perform) })
}

/// Starts to scatter parts of one length from the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iscatter(
    send_buffer: *const c_void,
    send_count: usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Parted::even(send_buffer, send_count, send_datatype);
    let receive = Memory::new(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || scatter(communicator, root, send, receive, start)) }
}

/// Scatters parts of any lengths from the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_scatterv(
    send_buffer: *const c_void,
    send_counts: *const usize,
    displacements: *const usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
) -> c_int {
    let send = Parted::uneven(send_buffer, send_counts, displacements, send_datatype);
    let receive = Memory::new(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    guard(|| unsafe { scatter(communicator, root, send, receive, perform) })
}

/// Starts to scatter parts of any lengths from the root.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_iscatterv(
    send_buffer: *const c_void,
    send_counts: *const usize,
    displacements: *const usize,
    send_datatype: *const Handle<Datatype>,
    receive_buffer: *mut c_void,
    receive_count: usize,
    receive_datatype: *const Handle<Datatype>,
    root: c_int,
    communicator: Handled,
    request: *mut *mut Handle<Request>,
) -> c_int {
    let send = Parted::uneven(send_buffer, send_counts, displacements, send_datatype);
    let receive = Memory::new(receive_buffer, receive_count, receive_datatype);
    // SAFETY: the C program's promises.
    unsafe { Request::start(request, || scatter(communicator, root, send, receive, start)) }
}

/// Prepares a broadcast, and performs or starts it.
///
/// # Safety
/// The C program's promises: it keeps the memory until the operation has ended.
unsafe fn broadcast<T>(on: Handled, root: c_int, memory: Memory, finish: impl Finish<T>) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut buffer = memory.buffer()?;
        Ok(finish(named(on)?.broadcast_raw(&mut buffer, rank(root)?)?)?)
    }
}

/// Prepares a gather, and performs or starts it. Only the root's memory to receive into is used.
///
/// # Safety
/// As [`broadcast`].
unsafe fn gather<T>(
    on: Handled,
    root: c_int,
    send: Memory,
    receive: Parted,
    finish: impl Finish<T>,
) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let (on, root) = (named(on)?, rank(root)?);
        let at_root = on.rank() == root;
        let mut receive = if at_root { Some(receive.open(on.size())?) } else { None };
        let send = if at_root && is_in_place(send.address) { None } else { Some(send.buffer()?) };
        let receive = receive.as_mut().map(|(buffer, parts)| RawPartsMut { buffer, parts: *parts });
        Ok(finish(on.gather_raw(send.as_ref(), root, receive)?)?)
    }
}

/// Prepares a scatter, and performs or starts it. Only the root's memory to send is used.
///
/// # Safety
/// As [`broadcast`].
unsafe fn scatter<T>(
    on: Handled,
    root: c_int,
    send: Parted,
    receive: Memory,
    finish: impl Finish<T>,
) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        let (on, root) = (named(on)?, rank(root)?);
        let at_root = on.rank() == root;
        let send = if at_root { Some(send.open(on.size())?) } else { None };
        let mut receive = if at_root && is_in_place(receive.address) { None } else { Some(receive.buffer()?) };
        let send = send.as_ref().map(|(buffer, parts)| RawParts { buffer, parts: *parts });
        Ok(finish(on.scatter_raw(send, root, receive.as_mut())?)?)
    }
}
