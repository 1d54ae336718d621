//! MPI-IO, whose components read and write buffers with system calls.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::interpose::{Handle, Offset, SUCCESS, file_error, interpose};
use crate::staging::{READ, Staged, WRITE};

/// A read may end early and leave the rest of the buffer as it is, so the copy is filled first.
const FROM_FILE: c_int = READ | WRITE;
const TO_FILE: c_int = READ;

/// The buffer of a call, and what the call does with it.
struct Buffer {
    address: *mut c_void,
    count: c_int,
    datatype: Handle,
    access: c_int,
}

impl Buffer {
    /// Makes host copies of what is on a device, and has the address name them.
    ///
    /// # Safety
    /// MPI's rules for a buffer of a call.
    unsafe fn copy(&mut self) -> Result<Staged, c_int> {
        let mut copies = Staged::new();
        // SAFETY: the caller's promise.
        unsafe { copies.elements(&mut self.address, self.count, self.datatype, self.access) };
        copies.fill().map(|()| copies)
    }
}

/// Makes a call that is over when it returns.
///
/// # Safety
/// MPI's rules for the call; `file` is valid.
unsafe fn run(file: Handle, mut buffer: Buffer, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    // SAFETY: the caller's promise, here and below.
    match unsafe { buffer.copy() } {
        Ok(copies) => {
            let answered = call(buffer.address);
            let code = copies.finish(answered);
            // SAFETY: as above.
            if answered == SUCCESS && code != SUCCESS { unsafe { file_error(file, code) } } else { code }
        }
        // SAFETY: as above.
        Err(code) => unsafe { file_error(file, code) },
    }
}

/// Makes a call that is over when its request is.
///
/// # Safety
/// As [`run`].
unsafe fn start(
    file: Handle,
    mut buffer: Buffer,
    request: *mut Handle,
    call: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise, here and below.
    let code = match unsafe { buffer.copy() } {
        Ok(copies) => match call(buffer.address) {
            // SAFETY: as above.
            SUCCESS => unsafe { copies.finish_with_request(request) },
            code => return code,
        },
        Err(code) => code,
    };
    // SAFETY: as above.
    if code == SUCCESS { code } else { unsafe { file_error(file, code) } }
}

/// The host copies of a split collective operation between its begin and end calls. A file has at most one.
struct SplitCall {
    file: Handle,
    buffer: *mut c_void,
    copies: Staged,
}

// SAFETY: pointers that are only compared and handed on.
unsafe impl Send for SplitCall {}

static SPLIT_CALLS: Mutex<Vec<SplitCall>> = Mutex::new(Vec::new());

/// Makes the begin call of a split collective operation.
///
/// # Safety
/// As [`run`].
unsafe fn begin(file: Handle, mut buffer: Buffer, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    // SAFETY: the caller's promise, here and below.
    match unsafe { buffer.copy() } {
        Ok(copies) => {
            let code = call(buffer.address);
            if code == SUCCESS && !copies.is_empty() {
                let split = SplitCall { file, buffer: buffer.address, copies };
                SPLIT_CALLS.lock().unwrap_or_else(PoisonError::into_inner).push(split);
            }
            code
        }
        // SAFETY: as above.
        Err(code) => unsafe { file_error(file, code) },
    }
}

/// Makes the end call of a split collective operation.
///
/// # Safety
/// As [`run`].
unsafe fn end(file: Handle, buffer: *mut c_void, call: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let split = {
        let mut calls = SPLIT_CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().position(|split| split.file == file).map(|index| calls.swap_remove(index))
    };
    let Some(split) = split else { return call(buffer) };
    let answered = call(split.buffer);
    let code = split.copies.finish(answered);
    // SAFETY: the caller's promise.
    if answered == SUCCESS && code != SUCCESS { unsafe { file_error(file, code) } } else { code }
}

interpose! {
    export_files;

    MPI_File_read / PMPI_File_read with FROM_FILE,
    MPI_File_read_all / PMPI_File_read_all with FROM_FILE,
    MPI_File_read_shared / PMPI_File_read_shared with FROM_FILE,
    MPI_File_read_ordered / PMPI_File_read_ordered with FROM_FILE,
    MPI_File_write / PMPI_File_write with TO_FILE,
    MPI_File_write_all / PMPI_File_write_all with TO_FILE,
    MPI_File_write_shared / PMPI_File_write_shared with TO_FILE,
    MPI_File_write_ordered / PMPI_File_write_ordered with TO_FILE
    => (next, access) (file: Handle, address: *mut c_void, count: c_int, datatype: Handle, status: Handle) {
        let buffer = Buffer { address, count, datatype, access };
        // SAFETY: the program's call, here and in all others.
        unsafe { run(file, buffer, |address| next(file, address, count, datatype, status)) }
    }

    MPI_File_read_at / PMPI_File_read_at with FROM_FILE,
    MPI_File_read_at_all / PMPI_File_read_at_all with FROM_FILE,
    MPI_File_write_at / PMPI_File_write_at with TO_FILE,
    MPI_File_write_at_all / PMPI_File_write_at_all with TO_FILE
    => (next, access) (
        file: Handle, offset: Offset, address: *mut c_void, count: c_int, datatype: Handle, status: Handle,
    ) {
        let buffer = Buffer { address, count, datatype, access };
        // SAFETY: as above.
        unsafe { run(file, buffer, |address| next(file, offset, address, count, datatype, status)) }
    }

    MPI_File_iread / PMPI_File_iread with FROM_FILE,
    MPI_File_iread_all / PMPI_File_iread_all with FROM_FILE,
    MPI_File_iread_shared / PMPI_File_iread_shared with FROM_FILE,
    MPI_File_iwrite / PMPI_File_iwrite with TO_FILE,
    MPI_File_iwrite_all / PMPI_File_iwrite_all with TO_FILE,
    MPI_File_iwrite_shared / PMPI_File_iwrite_shared with TO_FILE
    => (next, access) (file: Handle, address: *mut c_void, count: c_int, datatype: Handle, request: *mut Handle) {
        let buffer = Buffer { address, count, datatype, access };
        // SAFETY: as above.
        unsafe { start(file, buffer, request, |address| next(file, address, count, datatype, request)) }
    }

    MPI_File_iread_at / PMPI_File_iread_at with FROM_FILE,
    MPI_File_iread_at_all / PMPI_File_iread_at_all with FROM_FILE,
    MPI_File_iwrite_at / PMPI_File_iwrite_at with TO_FILE,
    MPI_File_iwrite_at_all / PMPI_File_iwrite_at_all with TO_FILE
    => (next, access) (
        file: Handle, offset: Offset, address: *mut c_void, count: c_int, datatype: Handle, request: *mut Handle,
    ) {
        let buffer = Buffer { address, count, datatype, access };
        // SAFETY: as above.
        unsafe { start(file, buffer, request, |address| next(file, offset, address, count, datatype, request)) }
    }

    MPI_File_read_all_begin / PMPI_File_read_all_begin with FROM_FILE,
    MPI_File_read_ordered_begin / PMPI_File_read_ordered_begin with FROM_FILE,
    MPI_File_write_all_begin / PMPI_File_write_all_begin with TO_FILE,
    MPI_File_write_ordered_begin / PMPI_File_write_ordered_begin with TO_FILE
    => (next, access) (file: Handle, address: *mut c_void, count: c_int, datatype: Handle) {
        let buffer = Buffer { address, count, datatype, access };
        // SAFETY: as above.
        unsafe { begin(file, buffer, |address| next(file, address, count, datatype)) }
    }

    MPI_File_read_at_all_begin / PMPI_File_read_at_all_begin with FROM_FILE,
    MPI_File_write_at_all_begin / PMPI_File_write_at_all_begin with TO_FILE
    => (next, access) (file: Handle, offset: Offset, address: *mut c_void, count: c_int, datatype: Handle) {
        let buffer = Buffer { address, count, datatype, access };
        // SAFETY: as above.
        unsafe { begin(file, buffer, |address| next(file, offset, address, count, datatype)) }
    }

    MPI_File_read_all_end / PMPI_File_read_all_end,
    MPI_File_read_ordered_end / PMPI_File_read_ordered_end,
    MPI_File_read_at_all_end / PMPI_File_read_at_all_end,
    MPI_File_write_all_end / PMPI_File_write_all_end,
    MPI_File_write_ordered_end / PMPI_File_write_ordered_end,
    MPI_File_write_at_all_end / PMPI_File_write_at_all_end
    => (next) (file: Handle, address: *mut c_void, status: Handle) {
        // SAFETY: as above.
        unsafe { end(file, address, |address| next(file, address, status)) }
    }
}
