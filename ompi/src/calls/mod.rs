//! The functions that the shim calls.

mod communicator;
mod engine;
mod fast_path;
mod layout;
mod parameters;
mod probe;
mod receive;
mod request;
mod send;
