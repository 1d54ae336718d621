//! MPI-IO, whose components read and write buffers with system calls.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::interpose::{Handle, Offset, SUCCESS, file_error, interpose};
use crate::staging::{READ, Staged, WRITTEN};

/// A read may end early, and then the rest of the buffer stays as it is: so it is copied in, too.
const FROM_FILE: c_int = READ | WRITTEN;
const TO_FILE: c_int = READ;

/// # Safety
/// MPI's rules for a call on `count` elements at `buffer`.
unsafe fn copies_of(buffer: &mut *mut c_void, count: c_int, datatype: Handle, access: c_int) -> Result<Staged, c_int> {
    let mut copies = Staged::new();
    // SAFETY: the caller's promise.
    unsafe { copies.elements(buffer, count, datatype, access) };
    copies.fill().map(|()| copies)
}

/// A call that is over when it returns.
///
/// # Safety
/// As [`copies_of`]; `file` is one.
unsafe fn run(
    file: Handle,
    (mut buffer, count, datatype): (*mut c_void, c_int, Handle),
    access: c_int,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    match unsafe { copies_of(&mut buffer, count, datatype, access) } {
        Ok(copies) => {
            let answered = call(buffer);
            let code = copies.finish(answered);
            // SAFETY: as above.
            if answered == SUCCESS && code != SUCCESS { unsafe { file_error(file, code) } } else { code }
        }
        // SAFETY: as above.
        Err(code) => unsafe { file_error(file, code) },
    }
}

/// A call that is over when its request is.
///
/// # Safety
/// As [`run`].
unsafe fn start(
    file: Handle,
    (mut buffer, count, datatype): (*mut c_void, c_int, Handle),
    access: c_int,
    request: *mut Handle,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let code = match unsafe { copies_of(&mut buffer, count, datatype, access) } {
        Ok(copies) => match call(buffer) {
            // SAFETY: as above.
            SUCCESS => unsafe { copies.follow(request) },
            code => return code,
        },
        Err(code) => code,
    };
    // SAFETY: as above.
    if code == SUCCESS { code } else { unsafe { file_error(file, code) } }
}

/// What a collective call that comes in two halves has in use between them. A file has at most one.
struct Half {
    file: Handle,
    buffer: *mut c_void,
    copies: Staged,
}

// SAFETY: pointers that are only compared and handed on.
unsafe impl Send for Half {}

static HALVES: Mutex<Vec<Half>> = Mutex::new(Vec::new());

/// The first half.
///
/// # Safety
/// As [`run`].
unsafe fn begin(
    file: Handle,
    (mut buffer, count, datatype): (*mut c_void, c_int, Handle),
    access: c_int,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    match unsafe { copies_of(&mut buffer, count, datatype, access) } {
        Ok(copies) => {
            let code = call(buffer);
            if code == SUCCESS && !copies.is_empty() {
                HALVES.lock().unwrap_or_else(PoisonError::into_inner).push(Half { file, buffer, copies });
            }
            code
        }
        // SAFETY: as above.
        Err(code) => unsafe { file_error(file, code) },
    }
}

/// The second half.
///
/// # Safety
/// As [`run`].
unsafe fn end(file: Handle, buffer: *mut c_void, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let half = {
        let mut halves = HALVES.lock().unwrap_or_else(PoisonError::into_inner);
        halves.iter().position(|half| half.file == file).map(|index| halves.swap_remove(index))
    };
    let Some(half) = half else { return call(buffer) };
    let answered = call(half.buffer);
    let code = half.copies.finish(answered);
    // SAFETY: the caller's promise.
    if answered == SUCCESS && code != SUCCESS { unsafe { file_error(file, code) } } else { code }
}

/// Each family by what its functions take: at an offset or not, blocking, started, in halves.
macro_rules! families {
    ($access:ident: $($mpi:ident $pmpi:ident $form:ident;)+) => { $( families!(@$form $access $mpi $pmpi); )+ };
    (@plain $access:ident $mpi:ident $pmpi:ident) => { interpose! {
        $mpi $pmpi next (file: Handle, buffer: *mut c_void, count: c_int, datatype: Handle, status: Handle) {
            // SAFETY: the program's call, here and in all others.
            unsafe {
                run(file, (buffer, count, datatype), $access, |buffer| next(file, buffer, count, datatype, status))
            }
        }
    } };
    (@plain_at $access:ident $mpi:ident $pmpi:ident) => { interpose! {
        $mpi $pmpi next (
            file: Handle, offset: Offset, buffer: *mut c_void, count: c_int, datatype: Handle, status: Handle,
        ) {
            // SAFETY: as above.
            unsafe {
                run(file, (buffer, count, datatype), $access, |buffer| {
                    next(file, offset, buffer, count, datatype, status)
                })
            }
        }
    } };
    (@started $access:ident $mpi:ident $pmpi:ident) => { interpose! {
        $mpi $pmpi next (file: Handle, buffer: *mut c_void, count: c_int, datatype: Handle, request: *mut Handle) {
            // SAFETY: as above.
            unsafe {
                start(file, (buffer, count, datatype), $access, request, |buffer| {
                    next(file, buffer, count, datatype, request)
                })
            }
        }
    } };
    (@started_at $access:ident $mpi:ident $pmpi:ident) => { interpose! {
        $mpi $pmpi next (
            file: Handle, offset: Offset, buffer: *mut c_void, count: c_int, datatype: Handle, request: *mut Handle,
        ) {
            // SAFETY: as above.
            unsafe {
                start(file, (buffer, count, datatype), $access, request, |buffer| {
                    next(file, offset, buffer, count, datatype, request)
                })
            }
        }
    } };
    (@begun $access:ident $mpi:ident $pmpi:ident) => { interpose! {
        $mpi $pmpi next (file: Handle, buffer: *mut c_void, count: c_int, datatype: Handle) {
            // SAFETY: as above.
            unsafe { begin(file, (buffer, count, datatype), $access, |buffer| next(file, buffer, count, datatype)) }
        }
    } };
    (@begun_at $access:ident $mpi:ident $pmpi:ident) => { interpose! {
        $mpi $pmpi next (file: Handle, offset: Offset, buffer: *mut c_void, count: c_int, datatype: Handle) {
            // SAFETY: as above.
            unsafe {
                begin(file, (buffer, count, datatype), $access, |buffer| next(file, offset, buffer, count, datatype))
            }
        }
    } };
    (@ended $access:ident $mpi:ident $pmpi:ident) => { interpose! {
        $mpi $pmpi next (file: Handle, buffer: *mut c_void, status: Handle) {
            // SAFETY: as above.
            unsafe { end(file, buffer, |buffer| next(file, buffer, status)) }
        }
    } };
}

families! { FROM_FILE:
    MPI_File_read PMPI_File_read plain;
    MPI_File_read_all PMPI_File_read_all plain;
    MPI_File_read_shared PMPI_File_read_shared plain;
    MPI_File_read_ordered PMPI_File_read_ordered plain;
    MPI_File_read_at PMPI_File_read_at plain_at;
    MPI_File_read_at_all PMPI_File_read_at_all plain_at;
    MPI_File_iread PMPI_File_iread started;
    MPI_File_iread_all PMPI_File_iread_all started;
    MPI_File_iread_shared PMPI_File_iread_shared started;
    MPI_File_iread_at PMPI_File_iread_at started_at;
    MPI_File_iread_at_all PMPI_File_iread_at_all started_at;
    MPI_File_read_all_begin PMPI_File_read_all_begin begun;
    MPI_File_read_ordered_begin PMPI_File_read_ordered_begin begun;
    MPI_File_read_at_all_begin PMPI_File_read_at_all_begin begun_at;
    MPI_File_read_all_end PMPI_File_read_all_end ended;
    MPI_File_read_ordered_end PMPI_File_read_ordered_end ended;
    MPI_File_read_at_all_end PMPI_File_read_at_all_end ended;
}

families! { TO_FILE:
    MPI_File_write PMPI_File_write plain;
    MPI_File_write_all PMPI_File_write_all plain;
    MPI_File_write_shared PMPI_File_write_shared plain;
    MPI_File_write_ordered PMPI_File_write_ordered plain;
    MPI_File_write_at PMPI_File_write_at plain_at;
    MPI_File_write_at_all PMPI_File_write_at_all plain_at;
    MPI_File_iwrite PMPI_File_iwrite started;
    MPI_File_iwrite_all PMPI_File_iwrite_all started;
    MPI_File_iwrite_shared PMPI_File_iwrite_shared started;
    MPI_File_iwrite_at PMPI_File_iwrite_at started_at;
    MPI_File_iwrite_at_all PMPI_File_iwrite_at_all started_at;
    MPI_File_write_all_begin PMPI_File_write_all_begin begun;
    MPI_File_write_ordered_begin PMPI_File_write_ordered_begin begun;
    MPI_File_write_at_all_begin PMPI_File_write_at_all_begin begun_at;
    MPI_File_write_all_end PMPI_File_write_all_end ended;
    MPI_File_write_ordered_end PMPI_File_write_ordered_end ended;
    MPI_File_write_at_all_end PMPI_File_write_at_all_end ended;
}
