//! The Open MPI component: the engine behind a C shim built from Open MPI's own headers (`shim/`).
//!
//! `shim/cableway.h` is the boundary; the functions here are its Rust half. Each catches panics: one poisons the
//! engine, and every later call answers an internal error instead of unwinding into C. What is under way ends with such an
//! error, too, or the process aborts (see `poison`).

#[cfg(accelerator)]
mod accelerator;
mod boundary;
mod buffer;
mod calls;
mod fault;
mod guard;
mod host;
mod intercept;
mod poison;
mod staging;
mod state;
mod symbol;
mod transports;
mod waiting;
