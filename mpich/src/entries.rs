//! MPI's names. The handles of MPICH and of the MPIs with its ABI are integers.

use std::ffi::{c_char, c_int, c_void};

/// A communicator, a datatype or an operation.
type Handle = c_int;
type Ints = *const c_int;
type Handles = *const Handle;
type Read = *const c_void;
type Written = *mut c_void;

/// Exports functions by MPI's names, which call the shim's.
macro_rules! entries {
    ($( $name:ident => $shim:ident($( $argument:ident: $type:ty ),*); )*) => {
        unsafe extern "C" {
            $( fn $shim($( $argument: $type ),*) -> c_int; )*
        }
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($( $argument: $type ),*) -> c_int {
                // SAFETY: MPI's rules for the call are those of the shim's function.
                unsafe { $shim($( $argument ),*) }
            }
        )*
    };
}

#[allow(non_snake_case)]
mod exported {
    use super::*;

    entries! {
        MPI_Init => shim_init(argc: *mut c_int, argv: *mut *mut *mut c_char);
        MPI_Init_thread => shim_init_thread(
            argc: *mut c_int, argv: *mut *mut *mut c_char, required: c_int, provided: *mut c_int
        );
        MPI_Finalize => shim_finalize();
        MPI_Comm_free => shim_comm_free(comm: *mut Handle);
        MPI_Comm_disconnect => shim_comm_disconnect(comm: *mut Handle);

        MPI_Bcast => shim_bcast(buffer: Written, count: c_int, datatype: Handle, root: c_int, comm: Handle);
        MPI_Gather => shim_gather(
            send: Read, send_count: c_int, send_type: Handle,
            receive: Written, receive_count: c_int, receive_type: Handle, root: c_int, comm: Handle
        );
        MPI_Gatherv => shim_gatherv(
            send: Read, send_count: c_int, send_type: Handle,
            receive: Written, counts: Ints, places: Ints, receive_type: Handle, root: c_int, comm: Handle
        );
        MPI_Scatter => shim_scatter(
            send: Read, send_count: c_int, send_type: Handle,
            receive: Written, receive_count: c_int, receive_type: Handle, root: c_int, comm: Handle
        );
        MPI_Scatterv => shim_scatterv(
            send: Read, counts: Ints, places: Ints, send_type: Handle,
            receive: Written, receive_count: c_int, receive_type: Handle, root: c_int, comm: Handle
        );
        MPI_Allgather => shim_allgather(
            send: Read, send_count: c_int, send_type: Handle,
            receive: Written, receive_count: c_int, receive_type: Handle, comm: Handle
        );
        MPI_Allgatherv => shim_allgatherv(
            send: Read, send_count: c_int, send_type: Handle,
            receive: Written, counts: Ints, places: Ints, receive_type: Handle, comm: Handle
        );
        MPI_Alltoall => shim_alltoall(
            send: Read, send_count: c_int, send_type: Handle,
            receive: Written, receive_count: c_int, receive_type: Handle, comm: Handle
        );
        MPI_Alltoallv => shim_alltoallv(
            send: Read, send_counts: Ints, send_places: Ints, send_type: Handle,
            receive: Written, counts: Ints, places: Ints, receive_type: Handle, comm: Handle
        );
        MPI_Alltoallw => shim_alltoallw(
            send: Read, send_counts: Ints, send_places: Ints, send_types: Handles,
            receive: Written, counts: Ints, places: Ints, receive_types: Handles, comm: Handle
        );

        MPI_Allreduce => shim_allreduce(
            send: Read, receive: Written, count: c_int, datatype: Handle, op: Handle, comm: Handle
        );
        MPI_Reduce => shim_reduce(
            send: Read, receive: Written, count: c_int, datatype: Handle, op: Handle, root: c_int, comm: Handle
        );
        MPI_Reduce_scatter => shim_reduce_scatter(
            send: Read, receive: Written, counts: Ints, datatype: Handle, op: Handle, comm: Handle
        );
        MPI_Reduce_scatter_block => shim_reduce_scatter_block(
            send: Read, receive: Written, count: c_int, datatype: Handle, op: Handle, comm: Handle
        );
        MPI_Scan => shim_scan(
            send: Read, receive: Written, count: c_int, datatype: Handle, op: Handle, comm: Handle
        );
        MPI_Exscan => shim_exscan(
            send: Read, receive: Written, count: c_int, datatype: Handle, op: Handle, comm: Handle
        );
    }
}
