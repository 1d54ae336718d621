//! Messages in the order of a device's stream.
//!
//! A [`Stream`] is a stream of the program. A message that is sent or received on it starts when the stream gets to that
//! point, and the stream can wait for it, with no kernel and no host function: the stream writes a number to a word in
//! host memory, a thread of this layer sees it and starts the message, and the stream waits until another word has the
//! number of the wait.
//!
//! The thread starts with the first stream. It polls while some stream has a call that is not done, and sleeps otherwise.
//! It makes progress for the whole engine, so the engine's locks must be real ([`Streams::new`]).
//!
//! Small messages pass through host memory, to and from which kernels of the stream copy (`point_to_point`).
//!
//! A kernel that runs can start messages and wait for them, too ([`Streams::isend_by_kernel`]): it stores to a word, and
//! reads another one.
//!
//! # Nothing that ends a wait depends on the stream that waits
//! Copies of the engine run in its own non-blocking streams, which exist before the first call. The messages follow no
//! default stream (`Buffer::settled`), because that may stand behind the stream that waits.
//!
//! # Errors
//! A message that fails is over, so the stream that waits for it goes on. The error is told by the message, and by the
//! next call on the stream if no one has asked the message by then.

mod alone;
mod batch;
mod bounce;
mod connections;
mod gated;
mod handle;
mod imported;
mod kernel;
mod kernel_words;
mod message;
mod one_sided;
mod operation;
mod persistent;
mod point_to_point;
mod prepared;
mod proxy;
mod queue;
mod shared;
mod state;
mod streams;
mod unneeded;

pub use alone::PutPath;
pub use batch::StreamBatch;
pub use gated::StartGate;
pub use handle::Stream;
pub use kernel_words::KernelWords;
pub use message::StreamMessage;
pub use operation::StreamJob;
pub use persistent::Prepared;
pub use prepared::pair::PreparedPath;
pub(crate) use prepared::wire::recode;
pub use proxy::is_stream_thread;
pub use streams::Streams;
