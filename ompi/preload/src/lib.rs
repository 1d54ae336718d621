//! `libcableway_mpi.so`, to be preloaded: MPI's calls that touch device memory before any component sees them.
//!
//! Each function here stands before Open MPI's own of the same name, `MPI_` and `PMPI_` alike (the bindings of other
//! languages call the latter), and goes on to it, with host copies in place of device buffers. Copies are made by the
//! component, which hands over its functions when it is loaded (`staging`): before that, and without it, every call
//! goes straight on. Nothing here depends on a version of Open MPI: its handles are pointers.

mod files;
mod interpose;
mod messages;
mod staging;
