//! MPI's calls that touch buffers before Open MPI asks any component: packing, `MPI_Sendrecv_replace`, MPI-IO.
//!
//! Each function here has the name and the arguments of one of MPI's. It replaces device buffers by host copies, calls
//! the function of Open MPI, and copies back what that wrote. The component makes the copies ([`staging`]). Without it,
//! and without a driver, every call goes straight on. Nothing here depends on a version of Open MPI: its handles are
//! pointers.
//!
//! Calls reach these functions in one of two ways. The component redirects the calls of a running process as it starts
//! ([`patch`]). The preload library (`ompi/preload`) exports the functions by MPI's names, so that the loader binds
//! programs to them.

pub mod calls;
mod files;
mod interpose;
mod messages;
pub mod patch;
pub mod staging;

pub use interpose::{Aint, Call, Handle, Next, Offset};
