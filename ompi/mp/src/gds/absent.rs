//! Calls that need a queue pair or a completion queue of LibGDSync's network card. They answer with an error.

use std::ffi::{c_int, c_void};

use super::answer::{Failure, answer};
use crate::CudaStream;

/// Says what a program can use in place of a call.
fn refuse(name: &str, instead: &str) -> c_int {
    answer(name, || Err(Failure::Unsupported(format!("there are no queue pairs of verbs here: use {instead}"))))
}

/// A call that takes these arguments, uses none of them, and fails.
macro_rules! absent {
    ($($name:ident($($type:ty),*) => $instead:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($(_: $type),*) -> c_int {
                refuse(stringify!($name), $instead)
            }
        )*
    };
}

absent! {
    gds_destroy_qp(*mut c_void) => "mp_finalize";
    gds_poll_cq(*mut c_void, c_int, *mut c_void) => "mp_progress_all";
    gds_post_send(*mut c_void, *mut c_void, *mut *mut c_void) => "mp_isend";
    gds_post_recv(*mut c_void, *mut c_void, *mut *mut c_void) => "mp_irecv";
    gds_stream_wait_cq(CudaStream, *mut c_void, c_int) => "mp_wait_on_stream";
    gds_stream_queue_send(CudaStream, *mut c_void, *mut c_void, *mut *mut c_void) => "mp_isend_on_stream";
    gds_prepare_send(*mut c_void, *mut c_void, *mut *mut c_void, *mut c_void) => "mp_send_prepare and gds_prepare_mp_send";
    gds_prepare_wait_cq(*mut c_void, *mut c_void, c_int) => "gds_prepare_mp_wait";
    gds_post_wait_cq(*mut c_void, *mut c_void, c_int) => "mp_wait";
}

/// Returns null.
#[unsafe(no_mangle)]
extern "C" fn gds_create_qp(
    _domain: *mut c_void,
    _context: *mut c_void,
    _attributes: *mut c_void,
    _device: c_int,
    _flags: c_int,
) -> *mut c_void {
    refuse("gds_create_qp", "mp_init");
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn what_needs_the_card_is_refused() {
        assert_eq!(gds_prepare_send(null_mut(), null_mut(), null_mut(), null_mut()), libc::EOPNOTSUPP);
        assert_eq!(gds_stream_wait_cq(null_mut(), null_mut(), 0), libc::EOPNOTSUPP);
        assert!(gds_create_qp(null_mut(), null_mut(), null_mut(), 0, 0).is_null());
    }
}
