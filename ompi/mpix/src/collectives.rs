//! Collective operations in the order of a stream.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::absent::fail;
use crate::component::{Collective, component};
use crate::{Count, Handle};

/// `enum cableway_collective_kind`
const BROADCAST: c_int = 0;
const ALLGATHER: c_int = 3;
const ALLTOALL: c_int = 4;
const ALLREDUCE: c_int = 6;
const REDUCE: c_int = 7;
const REDUCE_SCATTER: c_int = 8;

/// # Safety
/// As MPI asks of the program, with the buffers valid until the operation is over.
unsafe fn enqueue(name: &CStr, call: &Collective) -> c_int {
    match component() {
        // SAFETY: the caller's promise.
        Some(component) => unsafe { (component.collective)(name.as_ptr(), call) },
        None => fail(name, call.communicator),
    }
}

impl Collective {
    /// An operation that sends and receives nothing. A type stands for both sides, of which one may be without data.
    fn new(kind: c_int, root: c_int, datatype: Handle, communicator: Handle) -> Collective {
        Collective {
            kind,
            root,
            send: null(),
            receive: null_mut(),
            send_count: 0,
            receive_count: 0,
            send_type: datatype,
            receive_type: datatype,
            operation: null_mut(),
            counts: null(),
            wide_counts: null(),
            communicator,
        }
    }
}

/// Defines all functions for one type of counts: the name of each, and the field for the counts of a reduce-scatter.
macro_rules! collectives {
    ($count:ty, $counts:ident, $allreduce:ident $allreduce_text:literal, $bcast:ident $bcast_text:literal,
     $reduce:ident $reduce_text:literal, $allgather:ident $allgather_text:literal,
     $alltoall:ident $alltoall_text:literal, $reduce_scatter:ident $reduce_scatter_text:literal) => {
        /// # Safety
        /// As [`enqueue`].
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $allreduce(
            send: *const c_void,
            receive: *mut c_void,
            count: $count,
            datatype: Handle,
            operation: Handle,
            communicator: Handle,
        ) -> c_int {
            let receive_count = Count::from(count);
            let like = Collective::new(ALLREDUCE, 0, datatype, communicator);
            // SAFETY: the caller's promise.
            unsafe { enqueue($allreduce_text, &Collective { send, receive, receive_count, operation, ..like }) }
        }

        /// # Safety
        /// As [`enqueue`].
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $bcast(
            receive: *mut c_void,
            count: $count,
            datatype: Handle,
            root: c_int,
            communicator: Handle,
        ) -> c_int {
            let receive_count = Count::from(count);
            let like = Collective::new(BROADCAST, root, datatype, communicator);
            // SAFETY: the caller's promise.
            unsafe { enqueue($bcast_text, &Collective { receive, receive_count, ..like }) }
        }

        /// # Safety
        /// As [`enqueue`].
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $reduce(
            send: *const c_void,
            receive: *mut c_void,
            count: $count,
            datatype: Handle,
            operation: Handle,
            root: c_int,
            communicator: Handle,
        ) -> c_int {
            let receive_count = Count::from(count);
            let like = Collective::new(REDUCE, root, datatype, communicator);
            // SAFETY: the caller's promise.
            unsafe { enqueue($reduce_text, &Collective { send, receive, receive_count, operation, ..like }) }
        }

        /// # Safety
        /// As [`enqueue`].
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $allgather(
            send: *const c_void,
            send_count: $count,
            send_type: Handle,
            receive: *mut c_void,
            receive_count: $count,
            receive_type: Handle,
            communicator: Handle,
        ) -> c_int {
            let (send_count, receive_count) = (Count::from(send_count), Count::from(receive_count));
            let like = Collective::new(ALLGATHER, 0, receive_type, communicator);
            let call = Collective { send, receive, send_count, receive_count, send_type, ..like };
            // SAFETY: the caller's promise.
            unsafe { enqueue($allgather_text, &call) }
        }

        /// # Safety
        /// As [`enqueue`].
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $alltoall(
            send: *const c_void,
            send_count: $count,
            send_type: Handle,
            receive: *mut c_void,
            receive_count: $count,
            receive_type: Handle,
            communicator: Handle,
        ) -> c_int {
            let (send_count, receive_count) = (Count::from(send_count), Count::from(receive_count));
            let like = Collective::new(ALLTOALL, 0, receive_type, communicator);
            let call = Collective { send, receive, send_count, receive_count, send_type, ..like };
            // SAFETY: the caller's promise.
            unsafe { enqueue($alltoall_text, &call) }
        }

        /// # Safety
        /// As [`enqueue`]. There is a count for each rank.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $reduce_scatter(
            send: *const c_void,
            receive: *mut c_void,
            $counts: *const $count,
            datatype: Handle,
            operation: Handle,
            communicator: Handle,
        ) -> c_int {
            let like = Collective::new(REDUCE_SCATTER, 0, datatype, communicator);
            // SAFETY: the caller's promise.
            unsafe { enqueue($reduce_scatter_text, &Collective { send, receive, $counts, operation, ..like }) }
        }
    };
}

collectives!(
    c_int, counts,
    MPIX_Allreduce_enqueue c"MPIX_Allreduce_enqueue",
    MPIX_Bcast_enqueue c"MPIX_Bcast_enqueue",
    MPIX_Reduce_enqueue c"MPIX_Reduce_enqueue",
    MPIX_Allgather_enqueue c"MPIX_Allgather_enqueue",
    MPIX_Alltoall_enqueue c"MPIX_Alltoall_enqueue",
    MPIX_Reduce_scatter_enqueue c"MPIX_Reduce_scatter_enqueue"
);

#[allow(clippy::useless_conversion, reason = "the counts are Count already")]
mod large {
    use super::*;

    collectives!(
        Count, wide_counts,
        MPIX_Allreduce_enqueue_c c"MPIX_Allreduce_enqueue_c",
        MPIX_Bcast_enqueue_c c"MPIX_Bcast_enqueue_c",
        MPIX_Reduce_enqueue_c c"MPIX_Reduce_enqueue_c",
        MPIX_Allgather_enqueue_c c"MPIX_Allgather_enqueue_c",
        MPIX_Alltoall_enqueue_c c"MPIX_Alltoall_enqueue_c",
        MPIX_Reduce_scatter_enqueue_c c"MPIX_Reduce_scatter_enqueue_c"
    );
}
