//! Packing, `MPI_Sendrecv_replace`, `MPI_Buffer_attach`, `MPIX_Query_cuda_support` and
//! `MPIX_Query_rocm_support`.

use std::ffi::{c_char, c_int, c_void};

use crate::interpose::{Aint, Call, ERR_BUFFER, Handle, Next, SUCCESS, communicator_error, interpose, world};
use crate::staging::{self, READ, Staged, WRITE};

/// Fills the host copies, makes the call, and copies back what it wrote. Errors of the copies go to the communicator's
/// error handler.
///
/// # Safety
/// MPI's rules for the call.
unsafe fn run(mut copies: Staged, communicator: Handle, call: impl FnOnce() -> c_int) -> c_int {
    if let Err(code) = copies.fill() {
        // SAFETY: the caller's promise.
        return unsafe { communicator_error(communicator, code) };
    }
    let answered = call();
    let code = copies.finish(answered);
    if answered == SUCCESS && code != SUCCESS {
        // SAFETY: as above.
        return unsafe { communicator_error(communicator, code) };
    }
    code
}

/// Returns the offset of the packed data, or -1 if the program passed no position, which MPI refuses.
///
/// # Safety
/// `position` is null or valid.
unsafe fn packed_from<T: Copy + Into<i64>>(position: *const T) -> isize {
    // SAFETY: the caller's promise.
    unsafe { position.as_ref() }.map_or(-1, |&position| position.into() as isize)
}

interpose! {
    export_messages;

    MPI_Pack / PMPI_Pack => (next) (
        inbuf: *mut c_void, count: c_int, datatype: Handle, outbuf: *mut c_void, size: c_int, position: *mut c_int,
        communicator: Handle,
    ) {
        let (mut from, mut to, mut copies) = (inbuf, outbuf, Staged::new());
        // SAFETY: the program's call, here and below. Bytes behind the packed data are copied in, so that they keep
        // their values.
        unsafe {
            copies.elements(&mut from, count, datatype, READ);
            copies.bytes(&mut to, packed_from(position), size as isize, READ | WRITE);
            run(copies, communicator, || next(from, count, datatype, to, size, position, communicator))
        }
    }

    MPI_Unpack / PMPI_Unpack => (next) (
        inbuf: *mut c_void, size: c_int, position: *mut c_int, outbuf: *mut c_void, count: c_int, datatype: Handle,
        communicator: Handle,
    ) {
        let (mut from, mut to, mut copies) = (inbuf, outbuf, Staged::new());
        // SAFETY: the program's call.
        unsafe {
            copies.bytes(&mut from, packed_from(position), size as isize, READ);
            copies.elements(&mut to, count, datatype, READ | WRITE);
            run(copies, communicator, || next(from, size, position, to, count, datatype, communicator))
        }
    }

    MPI_Pack_external / PMPI_Pack_external => (next) (
        representation: *const c_char, inbuf: *mut c_void, count: c_int, datatype: Handle, outbuf: *mut c_void,
        size: Aint, position: *mut Aint,
    ) {
        let (mut from, mut to, mut copies) = (inbuf, outbuf, Staged::new());
        // SAFETY: the program's call.
        unsafe {
            copies.elements(&mut from, count, datatype, READ);
            copies.bytes(&mut to, packed_from(position.cast::<i64>()), size, READ | WRITE);
            run(copies, world(), || next(representation, from, count, datatype, to, size, position))
        }
    }

    MPI_Unpack_external / PMPI_Unpack_external => (next) (
        representation: *const c_char, inbuf: *mut c_void, size: Aint, position: *mut Aint, outbuf: *mut c_void,
        count: c_int, datatype: Handle,
    ) {
        let (mut from, mut to, mut copies) = (inbuf, outbuf, Staged::new());
        // SAFETY: the program's call.
        unsafe {
            copies.bytes(&mut from, packed_from(position.cast::<i64>()), size, READ);
            copies.elements(&mut to, count, datatype, READ | WRITE);
            run(copies, world(), || next(representation, from, size, position, to, count, datatype))
        }
    }

    MPI_Sendrecv_replace / PMPI_Sendrecv_replace => (next) (
        buffer: *mut c_void, count: c_int, datatype: Handle, dest: c_int, send_tag: c_int, source: c_int,
        receive_tag: c_int, communicator: Handle, status: Handle,
    ) {
        let (mut both, mut copies) = (buffer, Staged::new());
        // SAFETY: the program's call.
        unsafe {
            copies.elements(&mut both, count, datatype, READ | WRITE);
            run(copies, communicator, || {
                next(both, count, datatype, dest, send_tag, source, receive_tag, communicator, status)
            })
        }
    }

    MPI_Buffer_attach / PMPI_Buffer_attach => (next) (buffer: *mut c_void, size: c_int) {
        if staging::on_device(buffer, usize::try_from(size).unwrap_or(0)) {
            eprintln!("cableway: the buffer for buffered sends cannot be device memory; attach host memory");
            // SAFETY: MPI has calls without a communicator use this one's handler.
            return unsafe { communicator_error(world(), ERR_BUFFER) };
        }
        // SAFETY: the program's call.
        unsafe { next(buffer, size) }
    }
}

/// Defines the queries by which a program asks whether MPI takes device buffers of a vendor. The component takes those of
/// every vendor, as soon as its driver is loaded.
macro_rules! queries {
    ($($name:ident: $symbol:literal as $call:ident),+ $(,)?) => {
        $(
            /// Answers 1 if device buffers of this vendor may be handed to MPI, else 0.
            #[allow(non_snake_case)] // the name is Open MPI's
            pub extern "C" fn $name() -> c_int {
                c_int::from(staging::attached())
            }

            static $call: Next = Next::new($symbol);
        )+

        pub(crate) static QUERIES: &[Call] = &[$(Call { entry: || $name as *const () as usize, next: &$call }),+];
    };
}

queries! {
    MPIX_Query_cuda_support: c"MPIX_Query_cuda_support" as CUDA_QUERY,
    // Open MPI has it since 5.0.
    MPIX_Query_rocm_support: c"MPIX_Query_rocm_support" as ROCM_QUERY,
}
