//! `libcableway_mpi.so`, to be preloaded: the functions of `ompi/intercept` by MPI's own names, `MPI_` and `PMPI_`
//! alike (the bindings of other languages call the latter).
//!
//! The component redirects a program's calls to these functions itself. This library is for calls that it cannot reach:
//! those through addresses that somebody has looked up before `MPI_Init`. The component hands over its functions when
//! it starts. Before that, and without it, every call goes straight on.

use std::ffi::{c_char, c_int, c_void};

use cableway_ompi_intercept::staging::{self, Component};
use cableway_ompi_intercept::{Aint, Handle, Offset};

cableway_ompi_intercept::export_messages!();
cableway_ompi_intercept::export_files!();

#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_cuda_support() -> c_int {
    cableway_ompi_intercept::calls::MPIX_Query_cuda_support()
}

#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_rocm_support() -> c_int {
    cableway_ompi_intercept::calls::MPIX_Query_rocm_support()
}

/// Called by the component when it starts. True: this library's functions serve the process.
///
/// # Safety
/// `component` is valid as long as the process runs.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_intercept_attach(component: *const Component) -> bool {
    // SAFETY: the caller's promise.
    unsafe { staging::attach(component) }
}
