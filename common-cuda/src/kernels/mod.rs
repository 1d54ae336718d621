//! Our kernels in one context: loaded early, launched as revocable jobs.
//!
//! They are loaded when the context's device memory is first seen, not when they are first of use: to load a module
//! waits for kernels that fill the device, and one of the program's may wait for our message. So they are loaded only
//! while the default stream has nothing to do, and tried once; whatever is refused (a driver that does not take the
//! code, memory) leaves the copy engines to do the work, and one line says why.
//!
//! A job that has not started after some time, because other kernels fill the device, is revoked (`job`), and its
//! copies go by copy engine. It stays in the stream until the device has room, and as long nothing more is launched.

mod job;
mod jobs;
mod launch;
mod loaded;
mod packed;

pub(crate) use jobs::Jobs;
pub(crate) use launch::{Pieces, Strides, Work};
pub(crate) use loaded::Kernels;
pub(crate) use packed::{Packed, is_worth_a_launch};
