//! Sends, receives and waits in the order of a stream.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use crate::absent::fail;
use crate::component::{Call, component};
use crate::{Count, Handle};

/// `enum cableway_mpix_message`
const SEND: c_int = 0;
const RECV: c_int = 1;
const ISEND: c_int = 2;
const IRECV: c_int = 3;

/// # Safety
/// As MPI asks of the program.
unsafe fn enqueue(name: &CStr, call: &Call) -> c_int {
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.enqueue)(name.as_ptr(), call) },
        None => fail(name, call.communicator),
    }
}

/// # Safety
/// As [`enqueue`].
unsafe fn wait(name: &CStr, count: Count, requests: *mut Handle, statuses: *mut c_void) -> c_int {
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.wait)(name.as_ptr(), count, requests, statuses) },
        None => fail(name, null_mut()),
    }
}

/// Defines the functions of one kind: with an `int` as their count, and as `MPI_Count`.
macro_rules! messages {
    ($( $kind:ident: $name:ident $text:literal, $large:ident $large_text:literal
        ($buffer:ident: $pointer:ty $(, request $request:ident)? $(, status $status:ident)?); )+) => { $(
        messages!(@one $kind $name $text c_int, ($buffer: $pointer $(, request $request)? $(, status $status)?));
        messages!(@one $kind $large $large_text Count, ($buffer: $pointer $(, request $request)? $(, status $status)?));
    )+ };
    (@one $kind:ident $name:ident $text:literal $count:ty,
        ($buffer:ident: $pointer:ty $(, request $request:ident)? $(, status $status:ident)?)) => {
        /// # Safety
        /// As MPI asks of the program, with the buffer and the status valid until the message is over.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $buffer: $pointer,
            count: $count,
            datatype: Handle,
            peer: c_int,
            tag: c_int,
            communicator: Handle,
            $( $request: *mut Handle, )?
            $( $status: *mut c_void, )?
        ) -> c_int {
            #[allow(unused_mut, reason = "not each kind sets a field")]
            let mut call = Call {
                kind: $kind,
                buffer: $buffer.cast_mut(),
                #[allow(clippy::useless_conversion, reason = "one of the types is Count itself")]
                count: Count::from(count),
                datatype,
                peer,
                tag,
                communicator,
                request: null_mut(),
                status: null_mut(),
            };
            $( call.request = $request; )?
            $( call.status = $status; )?
            // SAFETY: the caller's promise.
            unsafe { enqueue($text, &call) }
        }
    };
}

messages! {
    SEND: MPIX_Send_enqueue c"MPIX_Send_enqueue", MPIX_Send_enqueue_c c"MPIX_Send_enqueue_c"
        (buffer: *const c_void);
    RECV: MPIX_Recv_enqueue c"MPIX_Recv_enqueue", MPIX_Recv_enqueue_c c"MPIX_Recv_enqueue_c"
        (buffer: *const c_void, status status);
    ISEND: MPIX_Isend_enqueue c"MPIX_Isend_enqueue", MPIX_Isend_enqueue_c c"MPIX_Isend_enqueue_c"
        (buffer: *const c_void, request request);
    IRECV: MPIX_Irecv_enqueue c"MPIX_Irecv_enqueue", MPIX_Irecv_enqueue_c c"MPIX_Irecv_enqueue_c"
        (buffer: *const c_void, request request);
}

/// # Safety
/// As MPI asks of the program, with the status valid until the message is over.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Wait_enqueue(request: *mut Handle, status: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait(c"MPIX_Wait_enqueue", 1, request, status) }
}

/// # Safety
/// As [`MPIX_Wait_enqueue`]. Both arrays have `count` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPIX_Waitall_enqueue(count: c_int, requests: *mut Handle, statuses: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait(c"MPIX_Waitall_enqueue", Count::from(count), requests, statuses) }
}
