//! Messages in the order of a stream of the program.

mod add;
mod calls;
mod kept;
mod lent;
mod one_sided;
mod prepared;
mod scope;

use std::sync::Arc;

use cableway_common_cuda::{Vendor, WaitCondition, WordAccess, WordOperation};
use cableway_pml::{Stream, StreamBatch, Streams};

use crate::error::Operation;
use crate::inner::Inner;
use crate::world::World;
use crate::{Error, ErrorKind};

pub(crate) use add::{put as add_put, receive as add_receive, send as add_send};
pub use calls::StreamCall;
pub(crate) use kept::{Kept, KeptList};
pub use lent::Lent;
pub use prepared::PreparedMessage;
pub use scope::{StreamRequest, StreamScope};

/// A stream that the program has made, on which messages are sent and received in a [`StreamScope`]. Made by
/// [`World::stream`].
///
/// Calls add to the stream and return at once, as launches of kernels do. docs/streams.md says what is ordered with what.
/// Every method may be called from any thread.
pub struct StreamRef {
    pub(crate) stream: Stream,
    pub(crate) world: Arc<Inner>,
}

/// A word of 32 or 64 bits that streams write and wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamWord {
    /// A word of 32 bits, by its address as the stream's device sees it.
    Bits32(u64),
    /// A word of 64 bits.
    Bits64(u64),
}

impl World {
    /// Describes a stream of the program by its handle: a `CUstream` of NVIDIA's driver or of cudarc, a `cudaStream_t`,
    /// or a `hipStream_t`. It may be in any context of the program, blocking or not. The handle of a default stream means
    /// that of the thread's current context.
    ///
    /// The first stream starts a thread, which sleeps while no stream has anything to do.
    ///
    /// # Safety
    /// The stream exists until the value is dropped and the stream has passed every call on it.
    ///
    /// # Errors
    /// The vendor's driver is not loaded, it has no stream memory operations (the error says what to do), or no thread can
    /// be created.
    pub unsafe fn stream<S>(&self, vendor: Vendor, handle: *mut S) -> Result<StreamRef, Error> {
        let world = self.inner();
        // SAFETY: the caller's promise.
        let stream = unsafe { world.streams()?.stream(vendor, handle.expose_provenance()) }?;
        Ok(StreamRef { stream, world: world.clone() })
    }

    /// Returns how often the thread of streams has looked for something to do, and whether it sleeps.
    #[doc(hidden)]
    pub fn stream_thread(&self) -> Option<(u64, bool)> {
        let streams = self.inner().streams.get()?;
        Some((streams.rounds(), streams.is_asleep()))
    }
}

impl Inner {
    fn streams(&self) -> Result<&Streams, Error> {
        if let Some(streams) = self.streams.get() {
            return Ok(streams);
        }
        let new = Streams::new(&self.engine)?;
        Ok(self.streams.get_or_init(|| new))
    }
}

impl StreamRef {
    /// Returns the program's handle.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        std::ptr::with_exposed_provenance_mut(self.stream.handle())
    }

    /// Makes the stream write a value to a word. It becomes visible after all earlier work of the stream.
    ///
    /// # Safety
    /// The word is aligned, in device memory of `cuMemAlloc` or in registered host memory, valid until the stream has
    /// passed the call, and accessed atomically by others.
    ///
    /// # Errors
    /// An earlier message on the stream failed and no one was told, the stream captures a graph, or the driver refused.
    pub unsafe fn write_value(&self, word: StreamWord, value: u64) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.operate(word, value, WordAccess::Write) }
    }

    /// Makes the stream wait until a word satisfies a condition.
    ///
    /// # Safety
    /// As [`write_value`](Self::write_value).
    ///
    /// # Errors
    /// As [`write_value`](Self::write_value).
    pub unsafe fn wait_value(&self, word: StreamWord, value: u64, condition: WaitCondition) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.operate(word, value, WordAccess::Wait(condition)) }
    }

    /// Returns the error of an earlier message on the stream that no one was told.
    ///
    /// # Errors
    /// That one.
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.stream.check()?)
    }

    /// Adds one call to the stream.
    pub(crate) fn add<R>(
        &self,
        operation: Operation,
        add: impl FnOnce(&mut StreamBatch<'_>) -> Result<R, cableway_pml::Error>,
    ) -> Result<R, Error> {
        let mut batch = self.stream.batch()?;
        let added = add(&mut batch).and_then(|added| batch.post().map(|()| added));
        added.map_err(|error| operation.failed(error))
    }

    /// # Safety
    /// As [`write_value`](Self::write_value).
    unsafe fn operate(&self, word: StreamWord, value: u64, access: WordAccess) -> Result<(), Error> {
        let operation = word_operation(word, value, access)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.stream.operate(&[operation]) }?)
    }
}

/// Describes an operation on a word, if it is aligned.
fn word_operation(word: StreamWord, value: u64, access: WordAccess) -> Result<WordOperation, Error> {
    let (address, wide) = match word {
        StreamWord::Bits32(address) => (address, false),
        StreamWord::Bits64(address) => (address, true),
    };
    let size = if wide { 8 } else { 4 };
    if !address.is_multiple_of(size) {
        let reason = format!("the word at {address:#x} is misaligned: its address must be a multiple of {size}");
        return Err(ErrorKind::BadBuffer(reason).into());
    }
    Ok(WordOperation { address, value, wide, access })
}

impl std::fmt::Debug for StreamRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamRef({:#x})", self.stream.handle())
    }
}
