//! `libcableway_coll_mpich.so`, to be preloaded into programs of MPICH: blocking collectives on device memory.
//!
//! MPI's names lead to the shim (`shim/`), C that is built with MPICH's header. It describes a call, and decides together
//! with the other members of the communicator who performs it: MPICH, on host copies of device memory, or `coll/`, over an
//! engine of this library. `docs/other-mpis.md` says how.
//!
//! # Layers
//! Each module uses those above it only.
//! - `boundary`, `guard`: what C and Rust pass each other, and panics.
//! - `modex`: the addresses of processes.
//! - `process`: the parameters, the devices and the engine.
//! - `types`, `groups`, `calls`: the shim's functions.
//! - `entries`: MPI's names.

mod boundary;
mod calls;
mod entries;
mod groups;
mod guard;
mod modex;
mod process;
mod types;
