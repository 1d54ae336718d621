//! Calls in a process that does not use the component.

use std::ffi::{CStr, c_int};

use cableway_ompi_find::{is_initialized, say, symbol};

use crate::Handle;

/// `MPI_ERR_OTHER` of Open MPI
const OTHER: c_int = 16;

/// Says why a call fails, and calls the error handler of the communicator, or that of `MPI_COMM_WORLD` if it is null.
/// Returns the error.
#[cold]
pub(crate) fn fail(call: &CStr, communicator: Handle) -> c_int {
    let name = call.to_string_lossy();
    if !is_initialized() {
        say(&format!("libcableway_mpix: {name}: MPI is not initialized, or finalized"));
        return OTHER;
    }
    say(&format!(
        "libcableway_mpix: {name}: Open MPI does not use Cableway's component as its pml, or one of another version: \
         run `cableway ompi status`"
    ));
    let communicator = if communicator.is_null() { symbol(c"ompi_mpi_comm_world") } else { communicator };
    let handler = symbol(c"MPI_Comm_call_errhandler");
    if !communicator.is_null() && !handler.is_null() {
        // SAFETY: MPI's function of this type.
        let handler: unsafe extern "C" fn(Handle, c_int) -> c_int = unsafe { std::mem::transmute(handler) };
        // SAFETY: MPI is initialized, and the program passed the communicator.
        unsafe { handler(communicator, OTHER) };
    }
    OTHER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_mpi_a_call_is_an_error() {
        assert_eq!(fail(c"MPIX_Stream_create", std::ptr::null_mut()), OTHER);
    }
}
