//! `libcableway_mpix.so`: MPICH's stream extensions for programs of Open MPI (`include/cableway_mpix.h`).
//!
//! The functions are those of the component, which Open MPI has loaded into the process: the engine is there. This library
//! finds the component and passes each call on. It links neither MPI nor the component, so that one file serves every
//! version of Open MPI that the component supports. `ompi/shim/mpix.h` is the boundary.

mod absent;
mod collectives;
mod component;
mod messages;
mod streams;

use std::ffi::c_void;

/// A handle of MPI: Open MPI's are addresses.
type Handle = *mut c_void;
/// `MPI_Count`
type Count = i64;
