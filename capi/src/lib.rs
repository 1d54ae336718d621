//! The library for C and C++, whose interface `include/cableway.h` describes: `libcableway.so`.
//!
//! Every function of the header is one function here, in the file of its subject. A function checks its arguments
//! (`handle`, `arguments`), calls the Rust library, and turns the outcome into a code and the thread's last error
//! (`outcome`). Memory of messages is described by address, count and datatype (`memory`). Nonblocking operations are
//! handles that own the request (`request`), on memory that the C program keeps in place. Handlers of active messages are
//! functions of the C program that the library calls (`active`).
//!
//! A panic never crosses the boundary: `outcome::guard` catches it, and every later call fails with the same code, as
//! the state behind it may be wrong.

mod active;
mod arguments;
mod code;
mod collective;
mod communicator;
mod datatype;
mod device;
mod exchange;
mod handle;
mod memory;
mod message;
mod movement;
mod neighbors;
mod one_sided;
mod one_sided_typed;
mod outcome;
mod prepared;
mod reduction;
mod registration;
mod request;
mod status;
mod stream;
mod version;
mod world;

#[cfg(test)]
mod header_tests;
