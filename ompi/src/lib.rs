//! The Open MPI component: the engine behind a C shim, which is built with Open MPI's own headers (`shim/`).
//!
//! `shim/cableway.h` is the boundary. This crate implements its Rust functions. Each of them catches panics. A panic
//! poisons the engine: pending operations end with an internal error, or the process aborts (see `poison`), and every
//! later call returns an internal error.

#[cfg(accelerator)]
mod accelerator;
mod boundary;
mod buffer;
mod calls;
mod collectives;
mod deferred;
mod fault;
mod guard;
mod host;
mod intercept;
mod mp;
mod poison;
mod staging;
mod state;
mod streams;
mod symbol;
mod transports;
mod waiting;
mod windows;
