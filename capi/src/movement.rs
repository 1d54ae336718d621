//! Collective operations that move data.

use std::ffi::{c_int, c_void};

use cableway::RawBuffer;

use crate::arguments::rank;
use crate::communicator::{Handled, named};
use crate::datatype::Datatype;
use crate::handle::Handle;
use crate::memory::{Divided, Memory, is_in_place};
use crate::outcome::guard;

/// No buffer, where only the root passes one.
const NONE: Option<&mut RawBuffer<'static>> = None;

/// Waits until all members have called it.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_barrier(communicator: Handled) -> c_int {
    // SAFETY: the C program's promises.
    guard(|| unsafe { Ok(named(communicator)?.barrier()?) })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let mut buffer = Memory { address: buffer, count, datatype }.buffer()?;
        Ok(named(communicator)?.broadcast(&mut buffer, rank(root)?)?)
    })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let (on, root) = (named(communicator)?, rank(root)?);
        let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
        if on.rank() != root {
            return Ok(on.gather(&send.buffer()?, root, NONE)?);
        }
        let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
        let mut receive = receive.of_ranks(on.size())?.buffer()?;
        match is_in_place(send_buffer) {
            true => Ok(on.gather_in_place(&mut receive, root)?),
            false => Ok(on.gather(&send.buffer()?, root, Some(&mut receive))?),
        }
    })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let (on, root) = (named(communicator)?, rank(root)?);
        let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
        if on.rank() != root {
            let nowhere: Option<(&mut RawBuffer<'_>, cableway::Parts<'_>)> = None;
            return Ok(on.gatherv(&send.buffer()?, root, nowhere)?);
        }
        let (address, counts, datatype) = (receive_buffer, receive_counts, receive_datatype);
        let (mut receive, parts) = Divided { address, counts, displacements, datatype }.parts(on.size())?;
        match is_in_place(send_buffer) {
            true => Ok(on.gatherv_in_place(&mut receive, parts, root)?),
            false => Ok(on.gatherv(&send.buffer()?, root, Some((&mut receive, parts)))?),
        }
    })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let (on, root) = (named(communicator)?, rank(root)?);
        let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
        if on.rank() != root {
            return Ok(on.scatter(None::<&RawBuffer<'_>>, root, &mut receive.buffer()?)?);
        }
        let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
        let mut send = send.of_ranks(on.size())?.buffer()?;
        match is_in_place(receive_buffer) {
            true => Ok(on.scatter_in_place(&mut send, root)?),
            false => Ok(on.scatter(Some(&send), root, &mut receive.buffer()?)?),
        }
    })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let (on, root) = (named(communicator)?, rank(root)?);
        let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
        if on.rank() != root {
            let nothing: Option<(&RawBuffer<'_>, cableway::Parts<'_>)> = None;
            return Ok(on.scatterv(nothing, root, &mut receive.buffer()?)?);
        }
        let (address, counts, datatype) = (send_buffer, send_counts, send_datatype);
        let (mut send, parts) = Divided { address, counts, displacements, datatype }.parts(on.size())?;
        match is_in_place(receive_buffer) {
            true => Ok(on.scatterv_in_place(&mut send, parts, root)?),
            false => Ok(on.scatterv(Some((&send, parts)), root, &mut receive.buffer()?)?),
        }
    })
}

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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let on = named(communicator)?;
        let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
        let mut receive = receive.of_ranks(on.size())?.buffer()?;
        if is_in_place(send_buffer) {
            return Ok(on.allgather_in_place(&mut receive)?);
        }
        let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
        Ok(on.allgather(&send.buffer()?, &mut receive)?)
    })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let on = named(communicator)?;
        let (address, counts, datatype) = (receive_buffer, receive_counts, receive_datatype);
        let (mut receive, parts) = Divided { address, counts, displacements, datatype }.parts(on.size())?;
        if is_in_place(send_buffer) {
            return Ok(on.allgatherv_in_place(&mut receive, parts)?);
        }
        let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
        Ok(on.allgatherv(&send.buffer()?, &mut receive, parts)?)
    })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let on = named(communicator)?;
        let receive = Memory { address: receive_buffer, count: receive_count, datatype: receive_datatype };
        let mut receive = receive.of_ranks(on.size())?.buffer()?;
        if is_in_place(send_buffer) {
            return Ok(on.alltoall_in_place(&mut receive)?);
        }
        let send = Memory { address: send_buffer, count: send_count, datatype: send_datatype };
        Ok(on.alltoall(&send.of_ranks(on.size())?.buffer()?, &mut receive)?)
    })
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
    // SAFETY: the C program's promises.
    guard(|| unsafe {
        let on = named(communicator)?;
        let receive = Divided {
            address: receive_buffer,
            counts: receive_counts,
            displacements: receive_displacements,
            datatype: receive_datatype,
        };
        let (mut receive, receive_parts) = receive.parts(on.size())?;
        if is_in_place(send_buffer) {
            return Ok(on.alltoallv_in_place(&mut receive, receive_parts)?);
        }
        let send = Divided {
            address: send_buffer,
            counts: send_counts,
            displacements: send_displacements,
            datatype: send_datatype,
        };
        let (send, send_parts) = send.parts(on.size())?;
        Ok(on.alltoallv((&send, send_parts), (&mut receive, receive_parts))?)
    })
}
