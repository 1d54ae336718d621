//! The functions that the shim calls, a room for each kind.

mod communicator;
mod engine;
mod layout;
mod parameters;
mod probe;
mod receive;
mod request;
mod send;
mod shortcut;
