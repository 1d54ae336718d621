//! Nonblocking collective operations that move data. Those that reduce are beside the blocking ones.

use std::ffi::{c_int, c_void};

use crate::arguments::rank;
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::Handle;
use crate::memory::{Memory, is_in_place};
use crate::request::Request;

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
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let mut buffer = Memory { address: buffer, count, datatype }.buffer()?;
            Ok(named(communicator)?.broadcast_raw(&mut buffer, rank(root)?)?)
        })
    }
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
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let on = named(communicator)?;
            let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
            let mut receive = receive.of_ranks(on.size())?.buffer()?;
            let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
            let send = if is_in_place(send_buffer) { None } else { Some(send.buffer()?) };
            Ok(on.allgather_raw(send.as_ref(), &mut receive)?)
        })
    }
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
    // SAFETY: the C program's promises.
    unsafe {
        Request::start(request, || {
            let on = named(communicator)?;
            let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
            let mut receive = receive.of_ranks(on.size())?.buffer()?;
            let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
            let send = if is_in_place(send_buffer) { None } else { Some(send.of_ranks(on.size())?.buffer()?) };
            Ok(on.alltoall_raw(send.as_ref(), &mut receive)?)
        })
    }
}
