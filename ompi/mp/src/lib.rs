//! `libcableway_mp.so`: LibMP's interface for programs of Open MPI (`include/mp.h`).
//!
//! The component, which Open MPI has loaded into the process, does the work: the engine is there. This library finds it,
//! and keeps LibMP's registrations, requests, windows and queues. It links neither MPI nor the component, so that one file
//! serves every version of Open MPI that the component supports. `ompi/shim/mp.h` is the boundary.
//!
//! - `component`: the boundary. `job`: what `mp_init` begins. `call`: errors.
//! - `request`: what requests are. `host`, `stream`, `window`, `word`, `queue`, `kernel`: the functions by subject.
//! - `gds`: LibGDSync's calls (`include/gdsync.h`).

mod call;
mod component;
mod gds;
mod host;
mod job;
mod kernel;
mod queue;
mod request;
mod stream;
mod window;
mod word;

use std::ffi::c_void;

/// A handle of MPI: Open MPI's are addresses.
type Handle = *mut c_void;
/// `cudaStream_t`
type CudaStream = *mut c_void;
