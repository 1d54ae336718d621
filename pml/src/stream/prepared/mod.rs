//! Prepared operations: a send or receive that is described once and posted on a stream many times.
//!
//! Within a node, between memory of devices that the sender can map, the two streams move the data alone: no CPU and no
//! message takes part in a post. Otherwise the thread moves it. Both sides agree on that once.
//!
//! - `plan`: what the streams do at each post, pure. `board`: the words that they share.
//! - `wire`, `note`: the messages of the two sides. `exchange`: how they agree, and what is left of them.
//! - `pair`: one side. `quiet`: when memory may be mapped.

mod board;
pub(super) mod exchange;
mod note;
pub(super) mod pair;
pub(super) mod plan;
pub(super) mod quiet;
pub(crate) mod wire;
